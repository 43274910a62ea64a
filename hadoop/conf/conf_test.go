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
	file(t, dir, "hdfs-site.xml", "a", "hdfs", "b", "hdfs", "c", "${a}-${b}-${env.VERBENA_TEST_CONF}-${none}-${a}", "loop", "${loop}")
	more := file(t, t.TempDir(), "more.xml", "d", "more")
	t.Setenv("VERBENA_TEST_CONF", "env")
	p, err := Read(dir, more)
	if err != nil {
		t.Fatal(err)
	}
	p.Set("e", "set", "a flag")
	for name, want := range map[string]string{"a": "hdfs", "b": "core", "c": "hdfs-core-env-${none}-${a}", "d": "more", "e": "set", "empty": "", "none": ""} {
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

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// References are replaced as Hadoop's Configuration does: the defaults of variables are those of
// shells, and what is not set ends it.
func TestReferences(t *testing.T) {
	t.Setenv("VERBENA_SET", "set")
	t.Setenv("VERBENA_EMPTY", "")
	p := &Properties{}
	p.Set("a", "A", "here")
	p.Set("key", "a", "here")
	p.Set("env.VERBENA_PROPERTY", "own", "here")
	p.Set("twenty", strings.Repeat("${a}", 20), "here")
	p.Set("more", strings.Repeat("${a}", 21), "here")
	p.Set("round", "${about}", "here")
	p.Set("about", "${round}", "here")
	for text, want := range map[string]string{
		"${env.VERBENA_SET}":         "set",
		"${env.VERBENA_SET:-d}":      "set",
		"${env.VERBENA_SET-d}":       "set",
		"${env.VERBENA_NONE:-d}/x":   "d/x",
		"${env.VERBENA_NONE-d}/x":    "d/x",
		"${env.VERBENA_NONE:-}x":     "x",
		"${env.VERBENA_NONE-a:-b-c}": "a:-b-c",
		"${env.VERBENA_EMPTY:-d}":    "d",
		"x${env.VERBENA_EMPTY-d}":    "x",
		"${env.VERBENA_NONE}":        "${env.VERBENA_NONE}",
		"${env.VERBENA_PROPERTY}":    "own",
		"${env.}":                    "${env.}",
		"${env.VERBENA_NONE:-${a}}":  "A",
		"${${key}}":                  "A",
		"${a}${none}${a}":            "A${none}${a}",
		"${a":                        "${a",
		"${a b}":                     "${a b}",
		"${twenty}":                  "${twenty}", // 21 with itself
		strings.Repeat("${a}", 20):   strings.Repeat("A", 20),
		"${more}":                    "${more}",
		"${round}":                   "${round}",
	} {
		p.Set("text", text, "here")
		if got, _ := p.String("text"); got != want {
			t.Errorf("%s is %q, want %q", text, got, want)
		}
	}
}

const include = `<configuration xmlns:xi="http://www.w3.org/2001/XInclude">`

// Files that are included count as if they stood there, relative to the one that includes
// them. One that is not there needs a fallback.
func TestIncludes(t *testing.T) {
	dir := t.TempDir()
	absolute := write(t, t.TempDir(), "absolute.xml", `<configuration><property name="abs" value="yes" final="true"/></configuration>`)
	write(t, dir, "core-site.xml", include+`
		<property><name>a</name><value>before</value></property>
		<property><name>b</name><value>before</value></property>
		<xi:include href="more/one.xml"><xi:fallback><property><name>c</name><value>unused</value></property></xi:fallback></xi:include>
		<property><name>b</name><value>behind</value></property>
		<property><name>abs</name><value>no</value></property>
		<xi:include href="gone.xml"><xi:fallback>
			<property><name>d</name><value>instead</value></property>
			<xi:include href="`+absolute+`"/>
		</xi:fallback></xi:include>
		<property><name>abs</name><value>no</value></property>
		<xi:include/>
	</configuration>`)
	one := write(t, dir, "more/one.xml", include+`<property><name>a</name><value>one</value></property><xi:include href="two.xml"/></configuration>`)
	write(t, dir, "more/two.xml", `<configuration><property><name>two</name><value>yes</value></property>
		<configuration><property><name>inner</name><value>yes</value></property></configuration>
		<property><name>a</name></property></configuration>`)
	p, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "one", "b": "behind", "c": "", "d": "instead", "two": "yes", "inner": "yes", "abs": "yes"} {
		if got, _ := p.String(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if from := p.From("a"); from != one {
		t.Errorf("a comes from %s", from)
	}
}

func TestBadIncludes(t *testing.T) {
	for name, test := range map[string]struct{ text, says string }{
		"missing":   {`<xi:include href="gone.xml"/>`, "no fallback"},
		"url":       {`<xi:include href="http://127.0.0.1:1/x.xml"><xi:fallback/></xi:include>`, "only files"},
		"malformed": {`<xi:include href="bad.xml"><xi:fallback/></xi:include>`, "bad.xml"},
		"itself":    {`<xi:include href="core-site.xml"/>`, "20 files inside each other"},
		"often":     {`<xi:include href="wide.xml"/>`, "1000 files in all"},
		"half":      {`<xi:include href="gone.xml"><xi:fallback>`, "closed by"},
		"file url":  {`<xi:include href="file:///verbena/gone.xml"/>`, "/verbena/gone.xml"},
	} {
		dir := t.TempDir()
		write(t, dir, "bad.xml", "<configuration><property>")
		write(t, dir, "empty.xml", "<configuration/>")
		write(t, dir, "wide.xml", include+strings.Repeat(`<xi:include href="empty.xml"/>`, 1000)+"</configuration>")
		write(t, dir, "core-site.xml", include+test.text+"</configuration>")
		write(t, dir, "hdfs-site.xml", "<configuration/>")
		if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What has a new name is found by either, and the last value counts.
func TestRenamed(t *testing.T) {
	dir := t.TempDir()
	file(t, dir, "core-site.xml", "fs.defaultFS", "hdfs://new", "fs.default.name", "hdfs://old", "dfs.block.size", "1m", "x", "${dfs.block.size}")
	file(t, dir, "hdfs-site.xml", "dfs.socket.timeout", "1 FINAL", "dfs.client.socket-timeout", "2")
	p, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	p.Set("dfs.umaskmode", "027", "a flag")
	for name, want := range map[string]string{"fs.defaultFS": "hdfs://old", "dfs.blocksize": "1m", "dfs.block.size": "1m", "x": "1m", "dfs.client.socket-timeout": "1", "fs.permissions.umask-mode": "027"} {
		if got, _ := p.String(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if from := p.From("dfs.umaskmode"); from != "a flag" {
		t.Errorf("it comes from %s", from)
	}
	for old, now := range renamed {
		if _, again := renamed[now]; again {
			t.Errorf("%s was renamed twice", old)
		}
	}
}

// FuzzRead reads a file that may include itself, and others that include it or each other.
// References to files elsewhere are left out: they may be any of this computer.
func FuzzRead(f *testing.F) {
	const property = "<property><name>%s</name><value>1</value></property>"
	f.Add("<configuration><property><name>a</name><value>${b}</value><final>true</final></property></configuration>", "")
	f.Add(`<?xml version="1.0"?><!-- c --><configuration><configuration><property name="a" value="b"/></configuration></configuration>`, "")
	f.Add(include+`<xi:include href=""><xi:fallback/></xi:include></configuration>`, "")
	f.Add(include+`<xi:include href="fuzz.xml"/></configuration>`, "")
	f.Add(include+`<xi:include href="sub/other.xml"/><xi:include href="sub/other.xml"/></configuration>`, include+`<xi:include href="../fuzz.xml"/></configuration>`)
	f.Add(include+`<xi:include href="sub/other.xml"><xi:fallback/></xi:include></configuration>`, include+fmt.Sprintf(property, "x")+`<xi:include href="other.xml"/></configuration>`)
	f.Add(include+`<xi:include href="none.xml"><xi:fallback><xi:include href="sub/other.xml"/></xi:fallback></xi:include></configuration>`, "<configuration>"+fmt.Sprintf(property, "x")+"</configuration>")
	f.Add(include+strings.Repeat(`<xi:include href="sub/other.xml"/>`, maxIncluded+3)+"</configuration>", "<configuration/>")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text, other string) {
		for _, s := range []string{text, other} {
			if !includesOwn(s) {
				t.Skip("it may be a file of this computer")
			}
		}
		write(t, dir, "sub/other.xml", other)
		p := &Properties{values: map[string]value{}}
		r := &reading{p: p}
		err := r.file(write(t, dir, "fuzz.xml", text), 0)
		if r.files > maxIncluded+1 {
			t.Errorf("%d files were included, at most %d may be", r.files, maxIncluded)
		}
		if err != nil {
			return
		}
		for _, name := range p.Names() {
			if name != strings.TrimSpace(name) || name == "" {
				t.Errorf("a property has the name %q", name)
			}
			p.String(name)
		}
	})
}

// includesOwn tells whether a text refers to no files but those of the fuzz target.
func includesOwn(text string) bool {
	for {
		_, rest, found := strings.Cut(text, "href")
		if !found {
			return true
		}
		own := false
		for _, name := range []string{"", "fuzz.xml", "other.xml", "none.xml", "sub/other.xml", "../fuzz.xml"} {
			own = own || strings.HasPrefix(rest, `="`+name+`"`)
		}
		if !own {
			return false
		}
		text = rest
	}
}
