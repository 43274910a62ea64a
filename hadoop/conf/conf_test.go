package conf

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func file(t *testing.T, dir, name string, pairs ...string) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("<?xml version=\"1.0\"?>\n<!-- c -->\n<configuration>\n")
	for i := 0; i < len(pairs); i += 2 {
		final := ""
		value, isFinal := strings.CutSuffix(pairs[i+1], " FINAL")
		if isFinal {
			final = "<final>true</final>"
		}
		fmt.Fprintf(&text, "<property><name>%s</name>\n  <value> %s </value>%s<description>x</description></property>\n", pairs[i], value, final)
	}
	text.WriteString("</configuration>\n")
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	file(t, dir, "core-site.xml", "a", "core", "b", "core FINAL", "empty", "")
	file(t, dir, "hdfs-site.xml", "a", "hdfs", "b", "hdfs", "c", "${a}-${b}-${none}-${env.VERBENA_TEST_CONF}", "loop", "${loop}")
	more := file(t, t.TempDir(), "more.xml", "d", "more")
	t.Setenv("VERBENA_TEST_CONF", "env")
	p, err := Read(dir, more)
	if err != nil {
		t.Fatal(err)
	}
	p.Set("e", "set", "a flag")
	for name, want := range map[string]string{"a": "hdfs", "b": "core", "c": "hdfs-core-${none}-env", "d": "more", "e": "set", "empty": "", "none": ""} {
		if got, ok := p.String(name); got != want || ok != (want != "") {
			t.Errorf("%s is %q %t, want %q", name, got, ok, want)
		}
	}
	if _, ok := p.String("loop"); !ok {
		t.Error("a property that refers to itself is gone")
	}
	if from := p.From("d"); from != more {
		t.Errorf("d comes from %s", from)
	}
	if _, err := Read(t.TempDir()); err == nil {
		t.Error("an empty directory was taken")
	}
	if _, err := Read(filepath.Join(dir, "none.xml")); err == nil {
		t.Error("a file that is not there was taken")
	}
	bad := filepath.Join(dir, "bad.xml")
	if err := os.WriteFile(bad, []byte("<configuration><property>"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(bad); err == nil || !strings.Contains(err.Error(), bad) {
		t.Errorf("half a file: %v", err)
	}
	var none *Properties
	if _, ok := none.String("a"); ok || none.Names() != nil {
		t.Error("no properties have some")
	}
}

func TestValues(t *testing.T) {
	p := &Properties{}
	for name, text := range map[string]string{
		"n": "12", "neg": "-1", "x": "0.999", "word": "twelve", "size": "128m", "plain": "512", "huge": "9e", "yes": "TRUE", "list": " a, b,,c ",
		"t": "30", "ms": "300000ms", "min": "10m", "far": "9999999999999d",
	} {
		p.Set(name, text, "here")
	}
	check := func(what string, got any, want string, err error) {
		t.Helper()
		if text := fmt.Sprint(got, err != nil); text != want {
			t.Errorf("%s: %s, want %s (%v)", what, text, want, err)
		}
		if err != nil && !strings.Contains(err.Error(), "here") {
			t.Errorf("%s: the error does not say where: %v", what, err)
		}
	}
	n, ok, err := p.Number("n", 0)
	check("n", []any{n, ok}, "[12 true] false", err)
	n, ok, err = p.Number("neg", 0)
	check("neg", []any{n, ok}, "[0 false] true", err)
	n, ok, err = p.Number("word", 0)
	check("word", []any{n, ok}, "[0 false] true", err)
	n, ok, err = p.Number("none", 0)
	check("none", []any{n, ok}, "[0 false] false", err)
	x, ok, err := p.Fraction("x")
	check("x", []any{x, ok}, "[0.999 true] false", err)
	b, ok, err := p.Bytes("size")
	check("size", []any{b, ok}, "[134217728 true] false", err)
	b, ok, err = p.Bytes("plain")
	check("plain", []any{b, ok}, "[512 true] false", err)
	b, ok, err = p.Bytes("huge")
	check("huge", []any{b, ok}, "[0 false] true", err)
	d, ok, err := p.Time("t", time.Second)
	check("t", []any{d, ok}, "[30s true] false", err)
	d, ok, err = p.Time("ms", time.Second)
	check("ms", []any{d, ok}, "[5m0s true] false", err)
	d, ok, err = p.Time("min", time.Millisecond)
	check("min", []any{d, ok}, "[10m0s true] false", err)
	d, ok, err = p.Time("far", time.Second)
	check("far", []any{d, ok}, "[0s false] true", err)
	yes, ok, err := p.Bool("yes")
	check("yes", []any{yes, ok}, "[true true] false", err)
	yes, ok, err = p.Bool("n")
	check("n", []any{yes, ok}, "[false false] true", err)
	check("list", p.List("list"), "[a b c] false", nil)
}

func TestAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hdfs-site.xml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte("<configuration><property><name>a</name><value>"+text+"</value></property></configuration>"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	p, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	p.Set("b", "set", "a flag")
	write("two")
	again, err := p.Again()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "two", "b": "set"} {
		if got, _ := again.String(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if none, err := (*Properties)(nil).Again(); none != nil || err != nil {
		t.Errorf("nothing read again is %v, %v", none, err)
	}
}
