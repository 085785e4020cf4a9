package saml

import (
	"bytes"
	"compress/flate"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
	"sync"

	dsig "github.com/russellhaering/goxmldsig"
)

// deflaters are *flate.Writer for anyone to reset. A new one takes 800 KiB, a hundred times what else a login that any client
// may start takes. The best speed makes URLs a few bytes longer, and spares the reset from clearing all of it.
var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic(err) // the level is a good one
	}
	return w
}}

func deflate(text []byte) ([]byte, error) {
	w := deflaters.Get().(*flate.Writer)
	defer deflaters.Put(w)
	var out bytes.Buffer
	w.Reset(&out)
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	err := w.Close()
	return out.Bytes(), err
}

// redirectURL returns the URL that leads a browser to ssoURL with a request, as the HTTP-Redirect binding wants it. Unless
// signer is nil the query is signed: its bytes from SAMLRequest to SigAlg, in this order.
func redirectURL(ssoURL, relay string, request []byte, signer crypto.Signer) (string, error) {
	u, err := url.Parse(ssoURL)
	if err != nil {
		return "", err
	}
	compressed, err := deflate(request)
	if err != nil {
		return "", err
	}
	query := "SAMLRequest=" + url.QueryEscape(base64.StdEncoding.EncodeToString(compressed)) + "&RelayState=" + url.QueryEscape(relay)
	if signer != nil {
		query += "&SigAlg=" + url.QueryEscape(dsig.RSASHA256SignatureMethod)
		digest := sha256.Sum256([]byte(query))
		signature, err := signer.Sign(rand.Reader, digest[:], crypto.SHA256)
		if err != nil {
			return "", fmt.Errorf("signing: %w", err)
		}
		query += "&Signature=" + url.QueryEscape(base64.StdEncoding.EncodeToString(signature))
	}
	u.RawQuery = strings.TrimPrefix(u.RawQuery+"&"+query, "&") // the URL may have a query of its own
	return u.String(), nil
}
