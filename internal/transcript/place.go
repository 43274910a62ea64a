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
	aside   = regexp.MustCompile(`\.Trash/\d{12}`)
	numbers = regexp.MustCompile(`[0-9.]+( [KMGTP])?`)
	blanks  = regexp.MustCompile(` {2,}`)
)

// A Call is a command, who performs it and with which of Hadoop's properties.
type Call struct {
	User       string
	Properties []string // NAME=VALUE
	Args       []string
}

// call divides the words of a step, which may begin with "as USER", and with -D NAME=VALUE
// behind that. Without a user it is root.
func call(words []string) Call {
	c := Call{User: "root", Args: words}
	if len(c.Args) > 2 && c.Args[0] == "as" {
		c.User, c.Args = c.Args[1], c.Args[2:]
	}
	for len(c.Args) > 2 && c.Args[0] == "-D" {
		c.Properties, c.Args = append(c.Properties, c.Args[1]), c.Args[2:]
	}
	return c
}

// Perform performs a command and returns its answer without what differs from run to run.
// The command "local FILE" shows a local file. The way in which a command is used, behind an
// error, is left out.
func (p Place) Perform(args []string, perform func(Call) (Answer, error)) (a Answer, err error) {
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
	c := call(words)
	if a, err = perform(c); err != nil {
		return a, fmt.Errorf("%s: %w", c.Args[0], err)
	}
	a.Out, a.Err = p.steady(c.Args[0], a.Out), p.steady(c.Args[0], a.Err)
	return a, nil
}

func (p Place) steady(command, text string) string {
	text = strings.NewReplacer(p.Local, "LOCAL", p.NameNode, "NN").Replace(text)
	if at := strings.Index(text, "\nUsage: "); at >= 0 {
		text = text[:at+1] // and what all commands are
	}
	text = aside.ReplaceAllString(text, ".Trash/CHECKPOINT")
	text = millis.ReplaceAllString(dates.ReplaceAllString(text, "DATE"), "MILLIS")
	if command == "df" {
		text = blanks.ReplaceAllString(numbers.ReplaceAllString(text, "NUMBER"), " ")
	}
	return text
}
