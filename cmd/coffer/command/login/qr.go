package login

import (
	"strings"

	"rsc.io/qr"
)

// quietZone is how many light squares have to surround a QR code.
const quietZone = 4

// qrText draws a QR code, two squares in each character. With colours it is black on white whatever the terminal's are;
// without, it is right for a dark terminal.
func qrText(text string, colours bool) (string, error) {
	code, err := qr.Encode(text, qr.L)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for y := -quietZone; y < code.Size+quietZone; y += 2 {
		if colours {
			out.WriteString("\x1b[30;107m")
		}
		for x := -quietZone; x < code.Size+quietZone; x++ {
			top, bottom := code.Black(x, y), code.Black(x, y+1)
			if !colours { // what is drawn is what is light
				top, bottom = !top, !bottom
			}
			out.WriteRune(halves(top, bottom))
		}
		if colours {
			out.WriteString("\x1b[0m")
		}
		out.WriteByte('\n')
	}
	return out.String(), nil
}

func halves(top, bottom bool) rune {
	switch {
	case top && bottom:
		return '█'
	case top:
		return '▀'
	case bottom:
		return '▄'
	}
	return ' '
}
