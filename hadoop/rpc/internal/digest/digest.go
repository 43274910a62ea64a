// Package digest is the SASL mechanism DIGEST-MD5 (RFC 2831) as far as Hadoop's
// tokens need it: authentication without protection of what follows (quality
// "auth"), once for each nonce, with names and passwords in ASCII. It is pure:
// tokens in, tokens out.
//
// MD5 is what the protocol prescribes. It protects the secret from who listens
// no better than MD5 does; the connection itself is neither encrypted nor signed.
package digest

import (
	"crypto/md5"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// ErrMismatch says that the other side does not know the password.
var ErrMismatch = errors.New("digest: the response does not fit the password")

const mostToken = 64 << 10 // bytes

// A Server authenticates one client.
type Server struct {
	Realm string
	URI   string // what the client must mean: protocol/server
	nonce string
	used  bool
}

// Challenge returns the first token, with a new nonce.
func (s *Server) Challenge() []byte {
	s.nonce, s.used = random(), false
	return []byte(`realm=` + quote(s.Realm) + `,nonce="` + s.nonce + `",qop="auth",charset=utf-8,algorithm=md5-sess`)
}

// Verify checks the client's answer to the challenge. password tells the secret
// of a user. It returns the last token, which shows that the server knows the
// secret, too.
func (s *Server) Verify(token []byte, password func(user string) (string, error)) (last []byte, user string, err error) {
	d, err := parse(token)
	if err != nil {
		return nil, "", err
	}
	if s.nonce == "" || s.used {
		return nil, "", errors.New("digest: a response without a challenge")
	}
	s.used = true
	for _, must := range []struct{ name, value string }{
		{"nonce", s.nonce}, {"nc", "00000001"}, {"digest-uri", s.URI}, {"realm", s.Realm},
	} {
		if d[must.name] != must.value {
			return nil, "", fmt.Errorf("digest: %s is %q, not %q", must.name, d[must.name], must.value)
		}
	}
	if qop, ok := d["qop"]; ok && qop != "auth" {
		return nil, "", fmt.Errorf("digest: protection %q is not offered", qop)
	}
	if d["cnonce"] == "" || d["username"] == "" {
		return nil, "", errors.New("digest: no user, or no nonce of the client")
	}
	secret, err := password(d["username"])
	if err != nil {
		return nil, "", err
	}
	e := exchange{d["username"], s.Realm, secret, s.nonce, d["cnonce"], d["digest-uri"], d["authzid"]}
	if subtle.ConstantTimeCompare([]byte(e.response("AUTHENTICATE")), []byte(d["response"])) != 1 {
		return nil, "", ErrMismatch
	}
	return []byte("rspauth=" + e.response("")), d["username"], nil
}

// A Client proves that it knows a password.
type Client struct {
	User, Password string
	URI            string
	cnonce         string // for tests; random otherwise
	last           string
}

// Respond answers the server's challenge.
func (c *Client) Respond(challenge []byte) ([]byte, error) {
	d, err := parse(challenge)
	if err != nil {
		return nil, err
	}
	if d["nonce"] == "" {
		return nil, errors.New("digest: a challenge without a nonce")
	}
	if d["algorithm"] != "md5-sess" {
		return nil, fmt.Errorf("digest: algorithm %q is not known", d["algorithm"])
	}
	if qop, ok := d["qop"]; ok && !listed(qop, "auth") {
		return nil, fmt.Errorf("digest: the server insists on the protection %q, which is not offered here", qop)
	}
	e := exchange{c.User, d["realm"], c.Password, d["nonce"], c.cnonce, c.URI, ""}
	if e.cnonce == "" {
		e.cnonce = random()
	}
	c.last = e.response("")
	return []byte("charset=utf-8,username=" + quote(e.user) + ",realm=" + quote(e.realm) + `,nonce=` + quote(e.nonce) +
		",nc=00000001,cnonce=" + quote(e.cnonce) + ",digest-uri=" + quote(e.uri) + ",maxbuf=65536,response=" + e.response("AUTHENTICATE") + ",qop=auth"), nil
}

// Check checks the server's last token.
func (c *Client) Check(last []byte) error {
	d, err := parse(last)
	if err != nil {
		return err
	}
	if c.last == "" || subtle.ConstantTimeCompare([]byte(d["rspauth"]), []byte(c.last)) != 1 {
		return ErrMismatch
	}
	return nil
}

type exchange struct{ user, realm, password, nonce, cnonce, uri, authzid string }

// response is the proof of who says method: AUTHENTICATE for the client, nothing
// for the server.
func (e *exchange) response(method string) string {
	secret := md5.Sum([]byte(e.user + ":" + e.realm + ":" + e.password))
	a1 := string(secret[:]) + ":" + e.nonce + ":" + e.cnonce
	if e.authzid != "" {
		a1 += ":" + e.authzid
	}
	return hash(hash(a1) + ":" + e.nonce + ":00000001:" + e.cnonce + ":auth:" + hash(method+":"+e.uri))
}

func hash(s string) string {
	sum := md5.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

func random() string {
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.StdEncoding.EncodeToString(b[:])
}

func listed(list, word string) bool {
	for item := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(item) == word {
			return true
		}
	}
	return false
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func quote(s string) string { return `"` + escape.Replace(s) + `"` }

// parse reads directives: name=value, the value quoted or not, with commas and
// white space between them. No name may come twice.
func parse(token []byte) (map[string]string, error) {
	if len(token) > mostToken {
		return nil, fmt.Errorf("digest: a token of %d bytes, at most %d", len(token), mostToken)
	}
	s, out := string(token), map[string]string{}
	const space = " \t\r\n"
	for {
		s = strings.TrimLeft(s, space+",")
		if s == "" {
			return out, nil
		}
		name, rest, ok := strings.Cut(s, "=")
		name = strings.Trim(name, space)
		if !ok || name == "" || strings.ContainsAny(name, space+`",`) {
			return nil, errors.New("digest: a directive without a name or a value")
		}
		rest = strings.TrimLeft(rest, space)
		var value string
		if strings.HasPrefix(rest, `"`) {
			if value, rest, ok = unquote(rest[1:]); !ok {
				return nil, fmt.Errorf("digest: the value of %s does not end", name)
			}
			if after := strings.TrimLeft(rest, space); after != "" && after[0] != ',' {
				return nil, fmt.Errorf("digest: no comma after %s", name)
			}
		} else {
			value, rest, _ = strings.Cut(rest, ",")
			value = strings.TrimRight(value, space)
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("digest: %s comes twice", name)
		}
		out[name], s = value, rest
	}
}

// unquote reads up to the closing quote.
func unquote(s string) (value, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], true
		case '\\':
			if i++; i == len(s) {
				return "", "", false
			}
		}
		b.WriteByte(s[i])
	}
	return "", "", false
}
