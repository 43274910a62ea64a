package principal

import (
	"os"
	"strings"
	"testing"
)

var unescape = strings.NewReplacer(`\\`, `\`, `\t`, "\t", `\n`, "\n")

// The names, rules and outcomes are those of Hadoop 3.4.1's KerberosName, by
// testdata/Names.java. EXAMPLE.ORG is the default realm.
func TestAsHadoop(t *testing.T) {
	b, err := os.ReadFile("testdata/outcomes.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 5 {
			t.Fatalf("%q", line)
		}
		mechanism, text, name, what, want := f[0], unescape.Replace(f[1]), f[2], f[3], f[4]
		rules, err := Parse(text, mechanism, "EXAMPLE.ORG")
		if what == "REFUSED" {
			if err == nil {
				t.Errorf("takes %q, Hadoop says %s", text, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		got, err := rules.Short(name)
		switch {
		case what == "IS" && (err != nil || got != want):
			t.Errorf("%s %q: %q is %q, %v, want %q", mechanism, text, name, got, err, want)
		case what == "FAILS" && (err == nil || !strings.HasSuffix(want, err.Error()) && !strings.HasSuffix(err.Error(), "Illegal principal name "+name+": "+want)):
			t.Errorf("%s %q: %q: %q, %v, want %s", mechanism, text, name, got, err, want)
		}
	}
}

// Replacements that Go's and Java's regular expressions do differently by themselves.
func TestReplace(t *testing.T) {
	for _, c := range []struct{ rule, name, want string }{
		{"RULE:[1:$1]s/.*/x/g", "abc@R", "xx"}, // Java: "abc".replaceAll(".*", "x")
		{"RULE:[1:$1]s/.*/x/", "abc@R", "x"},
		{"RULE:[1:$1]s/a*/x/g", "baac@R", "xbxxcx"},
		{"RULE:[1:$1]s/^a*/x/g", "aab@R", "xb"},
		{"RULE:[1:$1]s/(b)|(c)/[$1$2]/g", "abc@R", "a[b][c]"},
		{"RULE:[1:$1]s/(b)/$12/", "abc@R", "ab2c"},
		{"RULE:[1:$1]s/b/\\\\$/", "abc@R", `a\`},
	} {
		rules, err := Parse(c.rule, "", "")
		if err != nil {
			t.Fatal(err)
		}
		got, err := rules.Short(c.name)
		if strings.HasSuffix(c.rule, `\\$/`) { // an escaped backslash, then a group without number
			if err == nil {
				t.Errorf("%s: %q", c.rule, got)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.rule, got, err, c.want)
		}
	}
	if _, err := Parse("DEFAULT", "heimdal", ""); err == nil {
		t.Error("takes a mechanism that nobody knows")
	}
}

// Neither rules of a file nor names of clients make it panic.
func FuzzShort(f *testing.F) {
	f.Add("RULE:[1:$1@$0](.*@A)s/(@).*/$1x/gL DEFAULT", "ada@A")
	f.Add("RULE:[2:$1;$2]s/a*/\\$b/g", "aa/b@A")
	f.Fuzz(func(t *testing.T, text, name string) {
		rules, err := Parse(text, Hadoop, "A")
		if err != nil {
			return
		}
		short, err := rules.Short(name)
		if err == nil && strings.Contains(name, "@") && strings.ContainsAny(short, "/@") {
			t.Errorf("%q: %q is %q", text, name, short)
		}
	})
}

func TestDefaultRealm(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "",
		"[libdefaults]\n default_realm=A": "A",
		"# x\n[realms]\ndefault_realm = B\n[libdefaults]\n\tdns = no\n\tdefault_realm = EXAMPLE.ORG \n": "EXAMPLE.ORG",
		"default_realm = C\n[libdefaults]\n": "",
	} {
		if got := realmIn(strings.NewReader(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
