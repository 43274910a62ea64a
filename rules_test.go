package verbena

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

var someTransports = []string{"shm", "ibverbs", "iwarp", TransportTCP}

func rules(t testing.TB, lines ...string) (list Rules) {
	t.Helper()
	for _, line := range lines {
		r, err := ParseRule(line)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

func TestRulesDecide(t *testing.T) {
	rs := rules(t,
		"meta: operation=meta/* size=..4K never=iwarp",
		"bulk: size=1M.. only=tcp,ibverbs prefer=tcp",
		"peer=10.1.0.0/16 only=iwarp,tcp",
		"peer=*.far.example:8020 only=tcp",
		"peer=fd00::/8 prefer=tcp",
		"peer=unix:* only=shm",
		"six: peer=::1 never=shm",
		"exact: operation=scan prefer=iwarp,shm",
	)
	if err := rs.Check(someTransports); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		addr, service string
		intent        Intent
		rule, order   string
	}{
		{"a:1", "x/1", Intent{}, "", "shm ibverbs iwarp tcp"},
		{"a:1", "x/1", Intent{"meta/get", 4096}, "meta", "shm ibverbs tcp"},
		{"a:1", "x/1", Intent{"meta/get", 4097}, "", "shm ibverbs iwarp tcp"},
		{"a:1", "x/1", Intent{"meta/get", 0}, "", "shm ibverbs iwarp tcp"}, // its size is not known
		{"a:1", "meta/1", Intent{"", 1}, "meta", "shm ibverbs tcp"},
		{"a:1", "x/1", Intent{"meta/get", 1 << 20}, "bulk", "tcp ibverbs"},
		{"10.1.2.3:8020", "x/1", Intent{}, "rule 3", "iwarp tcp"},
		{"[::ffff:10.1.2.3]:8020", "x/1", Intent{}, "rule 3", "iwarp tcp"},
		{"10.2.2.3:8020", "x/1", Intent{}, "", "shm ibverbs iwarp tcp"},
		{"n.far.example:8020", "x/1", Intent{}, "rule 4", "tcp"},
		{"n.far.example:8021", "x/1", Intent{}, "", "shm ibverbs iwarp tcp"},
		{"[fd00::17%eth0]:1", "x/1", Intent{}, "rule 5", "tcp shm ibverbs iwarp"},
		{"unix:/run/x", "x/1", Intent{}, "rule 6", "shm"},
		{"[::1]:1", "x/1", Intent{}, "six", "ibverbs iwarp tcp"},
		{"a:1", "x/1", Intent{"scan", 0}, "exact", "iwarp shm ibverbs tcp"},
		{"a:1", "x/1", Intent{"scanner", 0}, "", "shm ibverbs iwarp tcp"},
	} {
		name, order := "", someTransports
		if i := rs.decide(c.addr, c.service, c.intent); i >= 0 {
			name = rs.name(i)
			order, _ = rs[i].order(someTransports)
		}
		if name != c.rule || strings.Join(order, " ") != c.order {
			t.Errorf("%s %s %+v: %q, %v; want %q, %s", c.addr, c.service, c.intent, name, order, c.rule, c.order)
		}
	}
}

func TestRulesRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "it says nothing",
		"bulk:":                           "it says nothing",
		"bulk size=1M..":                  `"bulk": want NAME: or a clause`,
		"sise=1M..":                       `no clause "sise"; there are operation, peer, size, only, prefer, never`,
		"only=":                           `"only=": want NAME=VALUE`,
		"only=tcp only=shm":               "only is there twice",
		"size=1M":                         "want a range, such as",
		"size=..":                         "want a range, such as",
		"size=0..5":                       "want bytes from 1 up",
		"size=..99999999999G":             "want bytes from 1 up",
		"size=2M..1M only=tcp":            "no size is between 2M and 1M",
		"peer=10.1.0.0/33 only=tcp":       "want a prefix of addresses",
		"peer=10.1.0.1/16 only=tcp":       "10.1.0.0/16 is meant",
		"peer=*.a.* only=tcp":             "one * at most",
		"only=auto":                       `"auto" is no transport`,
		"only=tcp,":                       `"" is no transport`,
		"prefer=tcp,tcp":                  "tcp is there twice",
		"only=tcp never=tcp":              "never tcp, and yet it is allowed",
		"prefer=tcp never=tcp":            "never tcp, and yet it is allowed or preferred",
		"only=tcp prefer=shm":             "shm is preferred and not allowed",
		"only=ether":                      `"ether" is no transport here; there are shm, ibverbs, iwarp, tcp`,
		"never=tcp,shm,iwarp,ibverbs":     "it leaves no transport",
		"a: never=tcp\na: peer=x":         "another rule has this name",
		"never=tcp\npeer=x only=tcp":      "it never decides, since rule 1 has no condition",
		"a: peer=x\npeer=y\nonly=nothing": `rule 3 (only=nothing): "nothing" is no transport`,
	} {
		var rs Rules
		var err error
		for _, line := range strings.Split(text, "\n") {
			var r Rule
			if r, err = ParseRule(line); err != nil {
				break
			}
			rs = append(rs, r)
		}
		if err == nil {
			err = rs.Check(someTransports)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
	if err := make(Rules, maxRules+1).Check(someTransports); err == nil {
		t.Error("rules without end")
	}
	for _, r := range []Rule{{Name: "two words"}, {Name: "a:"}, {Least: -1}, {Operation: "a b"}, {Only: []string{""}}} {
		if err := (Rules{r}).Check(someTransports); err == nil {
			t.Errorf("%+v is taken", r)
		}
	}
	if _, err := New(Config{Rules: Rules{{Only: []string{"ether"}}}}); err == nil || !strings.Contains(err.Error(), "ether") {
		t.Errorf("a runtime: %v", err)
	}
}

// Text that is taken comes out as a rule that reads the same.
func FuzzRule(f *testing.F) {
	for _, seed := range []string{"bulk: operation=read-* peer=10.1.0.0/16 size=1M.. only=tcp,shm prefer=tcp", "size=..8K never=tcp", "peer=[::1]:8020", "size=1..3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRule(text)
		if err != nil {
			return
		}
		again, err := ParseRule(r.String())
		if err != nil || again.String() != r.String() || again.Least != r.Least || again.Most != r.Most || !slices.Equal(again.Only, r.Only) {
			t.Errorf("%q: %+v, then %+v, %v", text, r, again, err)
		}
		r.about(text)
		r.wants(text, 1)
	})
}

// A dial obeys the rule that decides, says so, and lets what it asks for itself come
// first.
func TestDialByRules(t *testing.T) {
	n := newTestNet()
	server := newRuntime(t, Config{}, n.server)
	client := newRuntime(t, Config{Rules: rules(t, "bulk: size=1M.. only=far,tcp", "operation=slow never=near,far")}, n.client)
	ctx := testContext(t)
	l, err := server.Listen(ctx, "127.0.0.1:0", ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cfg                   DialConfig
		transport, rule, near string
	}{
		{DialConfig{}, "near", "", "both ends are on one host"},
		{DialConfig{Intent: Intent{Size: 1 << 20}}, "far", "bulk: size=1M.. only=far,tcp", "rule bulk does not allow it"},
		{DialConfig{Intent: Intent{Operation: "slow"}}, "tcp", "rule 2", "does not allow it"},
		{DialConfig{Intent: Intent{Operation: "slow"}, Rules: rules(t, "own: operation=slow prefer=far")}, "far", "own: operation=slow prefer=far", "not needed"},
		{DialConfig{Intent: Intent{Size: 1 << 20}, Transport: "near"}, "near", "", "asked for"},
		{DialConfig{Intent: Intent{Size: 1 << 20}, Transport: "auto"}, "far", "bulk", ""},
	} {
		e, err := client.Dial(ctx, l.Addr().String(), "test/1", c.cfg)
		if err != nil {
			t.Errorf("%+v: %v", c.cfg, err)
			continue
		}
		s := e.Selection()
		_ = e.Close()
		if s.Transport != c.transport || !strings.Contains(s.Rule, c.rule) || (c.rule == "") != (s.Rule == "") || !strings.Contains(s.candidate("near").Reason, c.near) {
			t.Errorf("%+v: %s", c.cfg, s)
		}
		explained, err := client.Explain(ctx, l.Addr().String(), c.cfg)
		if err != nil || explained.Transport != s.Transport || explained.Rule != s.Rule || !strings.Contains(explained.String(), s.Rule) {
			t.Errorf("explained as %s, %v", explained, err)
		}
	}
	if _, err := client.Dial(ctx, l.Addr().String(), "test/1", DialConfig{Rules: Rules{{Only: []string{"ether"}}}}); err == nil || !strings.Contains(err.Error(), "ether") {
		t.Errorf("a dial: %v", err)
	}
	// A rule that leaves what cannot be had says so.
	n.near[1].Refuse(errors.New("cable is out"))
	_, err = client.Dial(ctx, l.Addr().String(), "test/1", DialConfig{Rules: rules(t, "strict: only=near")})
	if err == nil || !strings.Contains(err.Error(), "rule strict does not allow it") {
		t.Errorf("the only one is gone: %v", err)
	}
}
