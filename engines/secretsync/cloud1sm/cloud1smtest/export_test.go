package cloud1smtest

// Check holds a request against the model.
func Check(action string, body []byte) ([]Violation, error) {
	m, err := loadModel()
	if err != nil {
		return nil, err
	}
	decoded, err := decode(body)
	if err != nil {
		return nil, err
	}
	return m.request(action, decoded), nil
}
