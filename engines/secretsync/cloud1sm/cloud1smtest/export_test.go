package cloud1smtest

// Check holds a request against the model.
func Check(action string, body []byte) ([]Violation, error) {
	m, err := loadModel()
	if err != nil {
		return nil, err
	}
	return m.Check(action, body)
}
