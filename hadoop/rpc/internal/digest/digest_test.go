package digest

import (
	"errors"
	"maps"
	"strings"
	"testing"
)

// The example of RFC 2831, section 4.
func TestExampleOfTheRFC(t *testing.T) {
	c := Client{User: "chris", Password: "secret", URI: "imap/elwood.innosoft.com", cnonce: "OA6MHXh6VqTrRk"}
	got, err := c.Respond([]byte(`realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8`))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(got), "response=d388dad90d4bbd760a152321f2143af7,") {
		t.Errorf("%s", got)
	}
	if err := c.Check([]byte("rspauth=ea40f60335c427b5527b84dbabcdfffd")); err != nil {
		t.Error(err)
	}
	if err := c.Check([]byte("rspauth=ea40f60335c427b5527b84dbabcdfffe")); !errors.Is(err, ErrMismatch) {
		t.Errorf("a server that does not know the password: %v", err)
	}
	s := Server{Realm: "elwood.innosoft.com", URI: c.URI, nonce: "OA6MG9tEQGm2hh"}
	last, user, err := s.Verify(got, func(string) (string, error) { return "secret", nil })
	if err != nil || user != "chris" || string(last) != "rspauth=ea40f60335c427b5527b84dbabcdfffd" {
		t.Errorf("%s %q %v", last, user, err)
	}
}

// What Java's own server and client (javax.security.sasl) said to each other
// about the token "ident" with the password "secret", as Hadoop uses them.
func TestTranscriptOfJava(t *testing.T) {
	const (
		challenge = `realm="default",nonce="myV/H6p/I/AzQ/ADOsWFCSsd/VBMJwSpNU0mTagp",qop="auth",charset=utf-8,algorithm=md5-sess`
		response  = `charset=utf-8,username="aWRlbnQ=",realm="default",nonce="myV/H6p/I/AzQ/ADOsWFCSsd/VBMJwSpNU0mTagp",nc=00000001,` +
			`cnonce="uZmEvvoJedZ3pX84B8t+y81hYKQYjj/ciyzoAXAy",digest-uri="/default",maxbuf=65536,response=1f9c95ce25f90291af25a2aed2a51564,qop=auth`
		last = `rspauth=98973400e6160f662685b2f2f69dc954`
	)
	s := Server{Realm: "default", URI: "/default", nonce: "myV/H6p/I/AzQ/ADOsWFCSsd/VBMJwSpNU0mTagp"}
	got, user, err := s.Verify([]byte(response), func(string) (string, error) { return "c2VjcmV0", nil })
	if err != nil || user != "aWRlbnQ=" || string(got) != last {
		t.Errorf("the server answers Java's client %s, %q, %v", got, user, err)
	}
	c := Client{User: "aWRlbnQ=", Password: "c2VjcmV0", URI: "/default", cnonce: "uZmEvvoJedZ3pX84B8t+y81hYKQYjj/ciyzoAXAy"}
	if got, err := c.Respond([]byte(challenge)); err != nil || string(got) != response {
		t.Errorf("the client answers Java's server\n%s, want\n%s, %v", got, response, err)
	}
	if err := c.Check([]byte(last)); err != nil {
		t.Error(err)
	}
}

func TestWhatIsRefused(t *testing.T) {
	secret := func(string) (string, error) { return "secret", nil }
	begin := func() (*Server, string) {
		s := &Server{Realm: "default", URI: "/default"}
		c := Client{User: `with"quote\`, Password: "secret", URI: s.URI}
		b, err := c.Respond(s.Challenge())
		if err != nil {
			t.Fatal(err)
		}
		return s, string(b)
	}
	s, good := begin()
	if _, user, err := s.Verify([]byte(good), secret); err != nil || user != `with"quote\` {
		t.Fatalf("%q %v", user, err)
	}
	if _, _, err := s.Verify([]byte(good), secret); err == nil {
		t.Error("the same response was taken twice")
	}
	for name, change := range map[string][2]string{
		"another nonce":     {`nonce="`, `nonce="x`},
		"another count":     {"nc=00000001", "nc=00000002"},
		"another server":    {`digest-uri="/default"`, `digest-uri="/other"`},
		"another realm":     {`realm="default"`, `realm="other"`},
		"protection":        {"qop=auth", "qop=auth-conf"},
		"a wrong response":  {"response=", "response=0"},
		"no user":           {"username=", "nobody="},
		"a directive twice": {"qop=auth", "qop=auth,qop=auth"},
		"no comma":          {`",nc`, `" nc`},
		"an open quote":     {`",nc=00000001`, ``},
	} {
		s, good := begin()
		bad := strings.Replace(good, change[0], change[1], 1)
		if bad == good {
			t.Fatalf("%s: nothing changed", name)
		}
		if _, _, err := s.Verify([]byte(bad), secret); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	s, good = begin()
	if _, _, err := s.Verify([]byte(good), func(string) (string, error) { return "other", nil }); !errors.Is(err, ErrMismatch) {
		t.Errorf("another password: %v", err)
	}
	for _, bad := range []string{``, `nonce="x"`, `nonce="x",algorithm=md5`, `nonce="x",algorithm=md5-sess,qop="auth-int,auth-conf"`} {
		if _, err := (&Client{}).Respond([]byte(bad)); err == nil {
			t.Errorf("the challenge %s was taken", bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`realm="default",nonce="a\"b",qop=auth , x = y`)
	f.Add(`a=",`)
	f.Fuzz(func(t *testing.T, token string) {
		d, err := parse([]byte(token))
		if err != nil {
			return
		}
		var again []string
		for name, value := range d {
			again = append(again, name+"="+quote(value))
		}
		d2, err := parse([]byte(strings.Join(again, ",")))
		if err != nil || !maps.Equal(d, d2) {
			t.Errorf("%q became %q: %v", d, d2, err)
		}
	})
}
