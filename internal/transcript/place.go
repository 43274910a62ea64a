package transcript

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// LocalFiles makes the local files that a transcript of file commands speaks of.
func LocalFiles(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, content := range map[string]string{"five": "five\n", "none": "", "long": strings.Repeat("0123456789", 300)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Place is where a transcript of file commands is performed.
type Place struct {
	Local    string // a directory, LOCAL in commands and answers
	NameNode string // host:port, NN in commands and answers
}

// What differs from run to run has a name in its place.
var (
	dates   = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?`)
	millis  = regexp.MustCompile(`\b1\d{12}\b`)
	numbers = regexp.MustCompile(`[0-9.]+( [KMGTP])?`)
	blanks  = regexp.MustCompile(` {2,}`)
)

// Perform performs a command and returns its answer without what differs from run to run.
// The command "local FILE" shows a local file. The way in which a command is used, behind an
// error, is left out.
func (p Place) Perform(args []string, perform func(args []string) (Answer, error)) (a Answer, err error) {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = strings.NewReplacer("LOCAL", p.Local, "NN", p.NameNode).Replace(arg)
	}
	if words[0] == "local" {
		if len(words) != 2 {
			return a, errors.New("local shows one file")
		}
		content, err := os.ReadFile(words[1])
		return Answer{Out: string(content)}, err
	}
	if a, err = perform(words); err != nil {
		return a, fmt.Errorf("%s: %w", args[0], err)
	}
	a.Out, a.Err = p.steady(words[0], a.Out), p.steady(words[0], a.Err)
	return a, nil
}

func (p Place) steady(command, text string) string {
	text = strings.NewReplacer(p.Local, "LOCAL", p.NameNode, "NN").Replace(text)
	if at := strings.Index(text, "\nUsage: "); at >= 0 {
		text = text[:at+1] // and what all commands are
	}
	text = millis.ReplaceAllString(dates.ReplaceAllString(text, "DATE"), "MILLIS")
	if command == "df" {
		text = blanks.ReplaceAllString(numbers.ReplaceAllString(text, "NUMBER"), " ")
	}
	return text
}
