package transcript

import (
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	const text = "# Prose.\n$ ls -d '/a b' \"\"\n| one\n|\n|.two\n! wrong\nexit 255\n~ because\n\n# More\n# prose.\n$ cat\n"
	steps, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if s := steps[0]; !reflect.DeepEqual(s.Args, []string{"ls", "-d", "/a b", ""}) || s.Answer != (Answer{255, "one\n\ntwo", "wrong\n"}) || s.Differs != "because" || s.Command() != `ls -d '/a b' ""` {
		t.Errorf("%+v", s)
	}
	if got := Format(steps); got != text {
		t.Errorf("%q", got)
	}
	for _, bad := range []string{"| out", "$ a\nexit x", "$ a 'b", "$ a\n?"} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

// A command is performed as who is named, with the properties in front of it.
func TestCalls(t *testing.T) {
	for text, want := range map[string]Call{
		"ls -R /":                      {User: "root", Args: []string{"ls", "-R", "/"}},
		"as ada ls":                    {User: "ada", Args: []string{"ls"}},
		"-D a=1 ls -D":                 {User: "root", Properties: []string{"a=1"}, Args: []string{"ls", "-D"}},
		"as ada -D a=1 -D b=2 ls /a b": {User: "ada", Properties: []string{"a=1", "b=2"}, Args: []string{"ls", "/a", "b"}},
	} {
		var got Call
		_, err := Place{}.Perform(strings.Fields(text), func(c Call) (Answer, error) { got = c; return Answer{}, nil })
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}

// What is read can be written and read again.
func FuzzParse(f *testing.F) {
	f.Add("# a\n$ b 'c d'\n| e\n|.f\n! g\nexit 3\n~ h\n")
	f.Fuzz(func(t *testing.T, text string) {
		steps, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(Format(steps))
		if err != nil || !reflect.DeepEqual(steps, again) {
			t.Fatalf("%q: %+v, %+v, %v", text, steps, again, err)
		}
	})
}
