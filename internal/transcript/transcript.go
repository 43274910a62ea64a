// Package transcript keeps what commands have answered as text that people read: so that a
// program can be compared with another one that is not there.
//
//	# Prose, which belongs to the command below.
//	$ ls -d /dir 'a b'
//	| a line of standard output
//	! a line of standard error
//	exit 1
//	~ why the program answers otherwise, on purpose
//	$ as ada -D fs.trash.interval=60 rm /dir/file
//
// A line of output that ends without a newline begins with "|." or "!." in place of "| " or
// "! ". An exit code of 0 is left out.
package transcript

import (
	"fmt"
	"strconv"
	"strings"
)

// Answer is what a command has answered.
type Answer struct {
	Code     int
	Out, Err string
}

// Step is a command and its answer.
type Step struct {
	Prose   []string // lines without the #
	Args    []string
	Answer  Answer
	Differs string // why the program's answer is another one; empty: it must be the same
	command string // as it is written
}

// Command is the command as it is written.
func (s *Step) Command() string { return s.command }

// Parse reads a transcript.
func Parse(text string) ([]Step, error) {
	var steps []Step
	var prose []string
	for i, line := range strings.Split(text, "\n") {
		bad := func(why string) error { return fmt.Errorf("line %d: %s: %q", i+1, why, line) }
		switch {
		case line == "":
			continue
		case line[0] == '#':
			prose = append(prose, strings.TrimPrefix(line[1:], " "))
			continue
		case strings.HasPrefix(line, "$ "):
			args, err := split(line[2:])
			if err != nil {
				return nil, bad(err.Error())
			}
			steps = append(steps, Step{Prose: prose, Args: args, command: line[2:]})
			prose = nil
			continue
		case len(steps) == 0:
			return nil, bad("an answer without a command")
		}
		s := &steps[len(steps)-1]
		mark, rest := line[:min(2, len(line))], line[min(2, len(line)):]
		switch mark {
		case "| ", "|":
			s.Answer.Out += rest + "\n"
		case "|.":
			s.Answer.Out += rest
		case "! ", "!":
			s.Answer.Err += rest + "\n"
		case "!.":
			s.Answer.Err += rest
		case "~ ":
			s.Differs = rest
		case "ex":
			code, err := strconv.Atoi(strings.TrimPrefix(rest, "it "))
			if err != nil {
				return nil, bad("no exit code")
			}
			s.Answer.Code = code
		default:
			return nil, bad("neither command nor answer")
		}
	}
	return steps, nil
}

// split divides a command into its words. Those in quotes, single or double, may have spaces
// in them.
func split(text string) (words []string, err error) {
	var word strings.Builder
	var quote rune
	begun := false
	for _, c := range text {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			quote, begun = c, true
		case c == ' ':
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(c)
			begun = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote is not closed")
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}

// Format writes a transcript as Parse reads it.
func Format(steps []Step) string {
	var b strings.Builder
	for i, s := range steps {
		if i > 0 && len(s.Prose) > 0 {
			b.WriteByte('\n')
		}
		for _, p := range s.Prose {
			b.WriteString(strings.TrimRight("# "+p, " ") + "\n")
		}
		fmt.Fprintf(&b, "$ %s\n", s.command)
		lines(&b, '|', s.Answer.Out)
		lines(&b, '!', s.Answer.Err)
		if s.Answer.Code != 0 {
			fmt.Fprintf(&b, "exit %d\n", s.Answer.Code)
		}
		if s.Differs != "" {
			fmt.Fprintf(&b, "~ %s\n", s.Differs)
		}
	}
	return b.String()
}

func lines(b *strings.Builder, mark byte, text string) {
	for line := range strings.Lines(text) {
		whole, ended := strings.CutSuffix(line, "\n")
		switch {
		case !ended:
			fmt.Fprintf(b, "%c.%s\n", mark, whole)
		case whole == "":
			fmt.Fprintf(b, "%c\n", mark)
		default:
			fmt.Fprintf(b, "%c %s\n", mark, whole)
		}
	}
}
