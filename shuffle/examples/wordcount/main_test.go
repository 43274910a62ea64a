package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/shuffle/internal/jobtest"
)

// asProgram makes the test binary the program.
const asProgram = "VERBENA_WORDCOUNT_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "1" {
		main()
		return
	}
	os.Exit(m.Run())
}

// launchers start three processes of the program, in each way.
var launchers = []struct {
	name    string // of what starts them; the program itself if it is empty
	install string
	before  []string
	flags   []string
}{
	{"", "", nil, []string{"-workers", "3"}},
	{"mpirun.openmpi", "openmpi-bin", []string{"-n", "3", "--allow-run-as-root", "--oversubscribe"}, nil},
	{"mpirun.mpich", "mpich", []string{"-n", "3"}, nil},
}

// counted runs the program by so many processes and returns what it has counted.
func counted(t *testing.T, launcher int, files ...string) map[string]string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := launchers[launcher]
	line := append(append(append(l.before, self), l.flags...), files...)
	if l.name != "" {
		line = append([]string{testneed.Tool(t, l.name, "apt-get install "+l.install)}, line...)
	}
	cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), asProgram+"=1")
	if said, err := cmd.CombinedOutput(); err != nil || len(said) > 0 {
		t.Fatalf("%v: %v\n%s", line, err, said)
	}
	all := map[string]string{}
	for rank := range 3 {
		text, err := os.ReadFile(filepath.Join(cmd.Dir, fmt.Sprint("counts.", rank)))
		if err != nil {
			t.Fatal(err)
		}
		n, last := 0, ""
		for line := range strings.Lines(string(text)) {
			word, count, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			if _, twice := all[word]; twice || n > 0 && word <= last {
				t.Fatalf("counts.%d: %q after %q, twice: %v", rank, word, last, twice)
			}
			all[word] = count
			n, last = n+1, word
		}
		if n == 0 {
			t.Errorf("process %d has counted nothing", rank)
		}
	}
	return all
}

// compare counts the words of files once more.
func compare(t *testing.T, got map[string]string, files ...string) {
	t.Helper()
	counts := map[string]int{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for word := range bytes.FieldsSeq(text) {
			counts[string(word)]++
		}
	}
	for word, n := range counts {
		if got[word] != fmt.Sprint(n) {
			t.Errorf("%q: %q, want %d", word, got[word], n)
		}
	}
	if len(got) != len(counts) || len(counts) == 0 {
		t.Errorf("%d words, want %d", len(got), len(counts))
	}
}

// TestDocuments counts the words of this project's documents, by the processes of each launcher.
func TestDocuments(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range files {
		if files[i], err = filepath.Abs(name); err != nil {
			t.Fatal(err)
		}
	}
	for i, l := range launchers {
		t.Run(l.name, func(t *testing.T) { compare(t, counted(t, i, files...), files...) })
	}
}

// TestDictionary counts those of the GNU Collaborative International Dictionary of English, 40 MB of text.
func TestDictionary(t *testing.T) {
	text := jobtest.Dictionary(t)
	file := filepath.Join(t.TempDir(), "gcide.txt")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	compare(t, counted(t, 0, file), file)
}

// TestFailure has one process in which a file is missing: the job ends, and one line says why.
func TestFailure(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-workers", "2", "/nowhere/text")
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), asProgram+"=1")
	said, err := cmd.CombinedOutput()
	if want := "open /nowhere/text: no such file or directory\n"; err == nil || strings.Count(string(said), "\n") != 1 || !strings.HasSuffix(string(said), want) {
		t.Errorf("%v\n%s", err, said)
	}
}

// TestProgramIsShort holds the program to forty lines, and the package documentation of shuffle to the program.
func TestProgramIsShort(t *testing.T) {
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(program), "package main")
	lines, shown := 0, ""
	for line := range strings.Lines("package main" + text) {
		if strings.TrimSpace(line) != "" {
			lines++
			shown += "//\t" + line
		} else {
			shown += "//\n"
		}
	}
	if lines > 40 {
		t.Errorf("the program has %d lines", lines)
	}
	doc, err := os.ReadFile(filepath.Join("..", "..", "doc.go"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), shown) {
		t.Errorf("the package documentation has not\n%s", shown)
	}
}
