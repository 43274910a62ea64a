package settings

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

const whole = `# for containers
shm:
  socket-dir: /run/verbena
  allow-uids: [1000, 1001]
iwarp:
  remote: true
  peer-timeout: 10s
ibverbs:
tuning:
  shm:
    eager: 16K
    spin: 40us
  tcp:
    chunk: 128K
`

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "verbena.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestPrecedence(t *testing.T) {
	file := write(t, whole)
	s, err := Load("", []string{"VERBENA_CONFIG=" + file, "HOME=/", "VERBENA_SHM_SOCKET_DIR=/run/other", "VERBENA_TUNING_SHM_EAGER=8K",
		"VERBENA_TUNING_SHM_MAX_WINDOW=128"},
		[]Flag{{"--tune", "tuning.shm.eager", "4K"}, {"--set", "iwarp.remote", "false"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Value{
		"shm.socket-dir":        {"/run/other", "environment VERBENA_SHM_SOCKET_DIR"},
		"shm.allow-uids":        {"1000,1001", file + ":4"},
		"iwarp.remote":          {"false", "--set"},
		"iwarp.peer-timeout":    {"10s", file + ":7"},
		"tuning.shm.eager":      {"4K", "--tune"},
		"tuning.shm.max-window": {"128", "environment VERBENA_TUNING_SHM_MAX_WINDOW"},
		"tuning.tcp.chunk":      {"128K", file + ":14"},
	} {
		if s[name] != want {
			t.Errorf("%s: %+v, want %+v", name, s[name], want)
		}
	}
	table := s.Tuning()
	if table["shm"].Eager != 4<<10 || table["shm"].Spin != 40*time.Microsecond || table["tcp"].Chunk != 128<<10 {
		t.Errorf("%+v", table)
	}
	if p := s.Providers(); len(p) != 4 || p["iwarp.remote"] != "false" {
		t.Errorf("%v", p)
	}
	// A flag's file comes before the environment's.
	if s, err := Load(write(t, "iwarp: {revision: 1}"), []string{"VERBENA_CONFIG=" + file}, nil); err != nil || len(s) != 1 {
		t.Errorf("%v, %v", s, err)
	}
	for _, empty := range []string{"", "# nothing\n", "---\n", "shm:\n"} {
		if s, err := Load(write(t, empty), nil, nil); err != nil || len(s) != 0 {
			t.Errorf("%q: %v, %v", empty, s, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"shm:\n  socket-dri: /run\n":                            `:2: there is no setting "shm.socket-dri"; there are shm.socket-dir, `,
		"smh:\n  socket-dir: /run\n":                            `:2: there is no setting "smh.socket-dir"; there are shm`,
		"verbose: true\n":                                       `:1: there is no setting "verbose"`,
		"shm:\n  huge-pages: perhaps\n":                         `:2: shm.huge-pages is "perhaps": want true or false`,
		"shm:\n  allow-uids: [root]\n":                          ":2: shm.allow-uids is \"root\": want users by number",
		"shm:\n  allow-uids: [[1]]\n":                           ":2: shm.allow-uids wants a list of plain values",
		"iwarp:\n  revision: 1\n  remote: true\n  revision: 2":  ":4: iwarp.revision is there twice",
		"iwarp:\n\n  peer-timeout: 5\n":                         ":3: iwarp.peer-timeout is \"5\": want a time with its unit",
		"tuning:\n  shm:\n    eager: 1\n":                       ":3: verbena: tuning shm.eager is 1, it can be",
		"tuning:\n  shm:\n    eagre: 1K\n":                      ":3: verbena: tuning \"shm.eagre\": no field",
		"tuning:\n  ether:\n    eager: 1K\n":                    ":3: tuning of \"ether\": there are",
		"tuning:\n  shm:\n    window: 64\n    max-window: 32\n": "tuning shm.window is 64, above max-window",
		"tuning:\n  shm:\n    eager:\n      more: 1\n":          ":4: tuning.shm.eager is a setting and wants a value",
		"shm: &a\n  huge-pages: true\nibverbs: *a\n":            ":3: there is no setting \"ibverbs\"",
		"shm:\n  huge-pages: &x true\n  socket-dir: *x\n":       ":3: shm.socket-dir: aliases are not taken",
		"shm: {}\n---\niwarp: {}\n":                             "one document is wanted",
		"- shm\n":                                               ":1: sections are wanted: shm",
		"memory:\n  receive: 7M\n":                              ":2: memory.receive is \"7M\": want bytes, such as 64M or 1G, at least 8M",
		"memory:\n  send: 99999999999G\n":                       ":2: memory.send is \"99999999999G\": want bytes",
		"memory:\n  ignore-pressure: 2\n":                       ":2: memory.ignore-pressure is \"2\": want true or false",
		"memory:\n  recive: 1G\n":                               ":2: there is no setting \"memory.recive\"; there are memory.receive, memory.send",
		"shm: [\n":                                              "yaml: ",
		"shm:\n  huge-pages: true\n  allow-uids: 1\n":           "(set by shm.allow-uids by ",
	} {
		if s, err := Load(write(t, text), nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %q", text, s, err, want)
		}
	}
	for variable, want := range map[string]string{
		"VERBENA_SHM_SOCKETDIR=/run":     "VERBENA_SHM_SOCKETDIR is no setting",
		"VERBENA_IWARP_REVISION=9":       "environment VERBENA_IWARP_REVISION: iwarp.revision is \"9\"",
		"VERBENA_TUNING_SHM_EAGER=lots":  "environment VERBENA_TUNING_SHM_EAGER: verbena: tuning shm.eager=\"lots\"",
		"VERBENA_CONFIG=/nowhere/at/all": "configuration file: open /nowhere/at/all",
	} {
		if s, err := Load("", []string{variable}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %q", variable, s, err, want)
		}
	}
	if s, err := Load("", nil, []Flag{{"--set", "shm.nothing", "1"}}); err == nil || !strings.Contains(err.Error(), "--set: there is no setting") {
		t.Errorf("%v, %v", s, err)
	}
}

func TestMemory(t *testing.T) {
	s, err := Load(write(t, "memory: {receive: 64M, send: 33554432}"), []string{"VERBENA_MEMORY_IGNORE_PRESSURE=true"}, []Flag{{"--set", "memory.send", "1G"}})
	if err != nil {
		t.Fatal(err)
	}
	var cfg verbena.Config
	if s.Apply(&cfg); cfg.ReceiveMemory != 64<<20 || cfg.SendMemory != 1<<30 || !cfg.IgnorePressure {
		t.Errorf("%+v", cfg)
	}
	if p := s.Providers(); len(p) != 0 {
		t.Errorf("the providers get %v", p)
	}
}

func TestVariablesDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, name := range append(Names(), TuningNames()...) {
		if other, ok := seen[Variable(name)]; ok {
			t.Errorf("%s and %s are both %s", name, other, Variable(name))
		}
		seen[Variable(name)] = name
	}
}

func FuzzFile(f *testing.F) {
	f.Add(whole)
	f.Add("rules: ['only=tcp', 'a: size=1..']")
	f.Add("shm: [")
	f.Add("? {a: b}\n: c\n")
	f.Add("tuning: {shm: {eager: !!binary aGVsbG8=}}")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parse("f", strings.NewReader(text))
		if err != nil && !strings.HasPrefix(err.Error(), "f:") {
			t.Errorf("%v does not name the file", err)
		}
		for name, v := range s {
			if strings.HasPrefix(name, rulesPrefix) {
				continue // the list as a whole was checked
			}
			if again := (Settings{}).set(name, v); err == nil && again != nil {
				t.Error(again)
			}
		}
	})
}

func TestRules(t *testing.T) {
	file := write(t, "shm: {huge-pages: false}\nrules:\n  - \"small: size=..8K prefer=shm\"\n  - peer=10.0.0.0/8 never=shm\n")
	variable := "VERBENA_RULES=bulk: size=1M.. only=tcp; operation=scan never=iwarp;"
	for _, c := range []struct {
		environment []string
		flags       []Flag
		want        []Value
	}{
		{nil, nil, []Value{{"small: size=..8K prefer=shm", file + ":3"}, {"peer=10.0.0.0/8 never=shm", file + ":4"}}},
		{[]string{variable}, nil, []Value{{"bulk: size=1M.. only=tcp", "environment VERBENA_RULES"}, {"operation=scan never=iwarp", "environment VERBENA_RULES"}}},
		{[]string{"VERBENA_RULES="}, nil, nil}, // none, whatever the file says
		{[]string{variable}, []Flag{{"--rule", "rules", "peer=a only=tcp"}, {"--rule", "rules", "only=shm,tcp"}}, []Value{{"peer=a only=tcp", "--rule"}, {"only=shm,tcp", "--rule"}}},
	} {
		s, err := Load(file, c.environment, c.flags)
		if err != nil {
			t.Fatal(err)
		}
		var got []Value
		for _, name := range s.RuleNames() {
			got = append(got, s[name])
		}
		var cfg verbena.Config
		s.Apply(&cfg)
		if !slices.Equal(got, c.want) || len(cfg.Rules) != len(c.want) || len(s.Providers()) != 1 {
			t.Errorf("%v, %v: %v", c.environment, c.flags, got)
		}
		for i, r := range cfg.Rules {
			if r.String() != c.want[i].Text {
				t.Errorf("%q became %q", c.want[i].Text, r)
			}
		}
	}
	for text, want := range map[string]string{
		"rules: only=tcp\n":                            ":1: rules want a list",
		"rules: [{a: b}]\n":                            ":1: a rule is a line of text in quotes",
		"rules:\n  - only=tcp\n  - size=1M\n":          ":3: verbena: rule \"size=1M\": size=1M: want a range",
		"rules:\n  - only=ether\n":                     ":2: verbena: rule 1 (only=ether): \"ether\" is no transport here; there are shm",
		"rules:\n  - never=tcp\n  - peer=x only=tcp\n": "it never decides, since rule 1 has no condition",
	} {
		if _, err := Load(write(t, text), nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
	for variable, want := range map[string]string{
		"VERBENA_RULES=only=ether": "environment VERBENA_RULES: verbena: rule 1 (only=ether)",
		"VERBENA_RULES=only":       "environment VERBENA_RULES: verbena: rule",
		"VERBENA_RULES_1=only=tcp": "VERBENA_RULES_1 is no setting",
	} {
		if _, err := Load("", []string{variable}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", variable, err, want)
		}
	}
	if _, err := Load("", nil, []Flag{{"--rule", "rules", "never=tcp prefer=tcp"}}); err == nil || !strings.Contains(err.Error(), "--rule: verbena: rule") {
		t.Error(err)
	}
}

// TestDocumented finds every setting in the documentation, as it is.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range slices.Concat(providers.Settings(), Memory()) {
		if row := "| `" + s.Name + "` | " + s.Usage + " | " + s.Default + " |"; !strings.Contains(string(page), row) {
			t.Errorf("docs/configuration.md lacks the row\n%s", row)
		}
	}
	for _, field := range verbena.TuningNames() {
		if !strings.Contains(string(page), "`"+field+"`") {
			t.Errorf("docs/configuration.md lacks the field %s", field)
		}
	}
}
