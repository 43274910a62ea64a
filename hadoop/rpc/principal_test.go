package rpc

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/principal"
)

// A client that has Kerberos and falls back to a server without it calls itself by its
// principal. Methods know short names, whoever the client is and acts for.
func TestShortNames(t *testing.T) {
	rules, err := principal.Parse("RULE:[2:$1@$0](nn@EXAMPLE\\.ORG)s/.*/hdfs/ RULE:[1:$1@$0](.*@EXAMPLE\\.ORG)s/@.*// RULE:[2:$1$2$1$2]", "", "")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 1)
	address, _ := startServer(t, Config{
		ShortName: rules.Short,
		Impersonate: func(realUser, user string, _ net.Addr) error {
			asked <- realUser + " for " + user
			return nil
		},
	}, nil)
	long := strings.Repeat("x", 200) + "/" + strings.Repeat("y", 200)
	for _, test := range []struct{ user, realUser, want, asks, refusal string }{
		{user: "ada", want: "ada"},
		{user: "ada@EXAMPLE.ORG", want: "ada"},
		{user: "nn/host1@EXAMPLE.ORG", want: "hdfs"},
		{user: "ada@EXAMPLE.ORG", realUser: "oozie@EXAMPLE.ORG", want: "ada", asks: "oozie for ada"},
		{user: "ada", realUser: "ada@EXAMPLE.ORG", want: "ada"},
		{user: "eve@ELSEWHERE", refusal: "Illegal principal name eve@ELSEWHERE: org.apache.hadoop.security.authentication.util.KerberosName$NoMatchingRule: No rules applied to eve@ELSEWHERE"},
		{user: "ada", realUser: "a@b@c", refusal: "Malformed Kerberos name: a@b@c"},
		{user: long, refusal: "the short name of a user has 800 bytes, at most 512 are allowed"},
	} {
		nc, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewConn(t.Context(), nc, Target{Protocol: testProtocol, User: test.user, RealUser: test.realUser}, ClientConfig{})
		if err != nil {
			t.Fatal(err)
		}
		var got ping
		err = c.Call(t.Context(), "whoami", &ping{}, &got)
		var refused *exception.Error
		if test.refusal == "" && (err != nil || got.GetEffectiveUser() != test.want) {
			t.Errorf("%+v: %q, %v", test, got.GetEffectiveUser(), err)
		}
		if test.refusal != "" && (!errors.As(err, &refused) || refused.Message != test.refusal) {
			t.Errorf("%+v: %v", test, err)
		}
		if test.asks != "" {
			if got := <-asked; got != test.asks {
				t.Errorf("asked about %s, want %s", got, test.asks)
			}
		}
		c.Close()
	}
}
