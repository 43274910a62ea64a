package settings

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/verbena-data/verbena"
)

// rulesSection holds the rules that choose transports, and rulesPrefix begins the
// names of the rules in Settings: "rules.1" comes first.
const (
	rulesSection = "rules"
	rulesPrefix  = rulesSection + "."
)

// replaceRules takes a whole list of rules in place of what was there: their order
// counts, so that lists of different places are not mixed.
func (s Settings) replaceRules(lines []Value) error {
	for name := range s {
		if strings.HasPrefix(name, rulesPrefix) {
			delete(s, name)
		}
	}
	for i, v := range lines {
		if _, err := verbena.ParseRule(v.Text); err != nil {
			return fmt.Errorf("%s: %w", v.From, err)
		}
		s[rulesPrefix+strconv.Itoa(i+1)] = v
	}
	if _, err := s.rules(); err != nil {
		return fmt.Errorf("%s: %w", lines[0].From, err)
	}
	return nil
}

// splitRules are the rules of one text, with semicolons or line ends between them.
func splitRules(text, from string) (lines []Value) {
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == ';' || r == '\n' }) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, Value{line, from})
		}
	}
	return lines
}

// RuleNames are those of the rules that are set, in order.
func (s Settings) RuleNames() (names []string) {
	for i := 1; ; i++ {
		name := rulesPrefix + strconv.Itoa(i)
		if _, ok := s[name]; !ok {
			return names
		}
		names = append(names, name)
	}
}

// Rules are those for verbena.Config. Load has checked them.
func (s Settings) Rules() verbena.Rules {
	rules, err := s.rules()
	if err != nil {
		return nil // Load would have failed
	}
	return rules
}

func (s Settings) rules() (rules verbena.Rules, err error) {
	for _, name := range s.RuleNames() {
		r, err := verbena.ParseRule(s[name].Text)
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, rules.Check(transports())
}
