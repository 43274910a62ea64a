// Package principal maps the names of Kerberos principals to short names of users, by
// Hadoop's rules (hadoop.security.auth_to_local), as its class KerberosName does.
//
// Patterns are those of Go's regexp: one with what Go lacks, such as a look ahead, is
// refused. The package imports hadoop/exception alone.
package principal

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/verbena-data/verbena/hadoop/exception"
)

// Simple are the rules of a Hadoop without Kerberos: the first part of a name.
const Simple = "RULE:[1:$1] RULE:[2:$1]"

// Mechanisms by which rules are evaluated (hadoop.security.auth_to_local.mechanism).
const (
	Hadoop = "hadoop" // every name needs a rule, and short names have no / and no @
	MIT    = "mit"    // a name without a rule stays as it is
)

// Rules map names. They do not change, and may be used concurrently.
type Rules struct {
	list  []rule
	mit   bool
	realm string
}

// A rule applies to names with so many components, realm excluded.
type rule struct {
	text       string // as Hadoop writes it
	realm      bool   // DEFAULT: it applies to names of the default realm
	components int
	format     string
	match      *regexp.Regexp // of all that format makes; nil: anything
	from       *regexp.Regexp // nil: nothing is replaced
	next       *regexp.Regexp // from, behind any rune
	to         string
	all, lower bool
}

var (
	ruleParser = regexp.MustCompile(`^\s*((DEFAULT)|(RULE:\[(\d*):([^\]]*)](\(([^)]*)\))?(s/([^/]*)/([^/]*)/(g)?)?))/?(L)?`)
	nameParser = regexp.MustCompile(`^([^/@]+)(/([^/@]+))?(@([^/@]+))?$`)
	parameter  = regexp.MustCompile(`([^$]*)(\$(\d*))?`)
)

// Parse reads rules, which stand behind each other with or without white space. An empty
// mechanism is that of Hadoop. The rule DEFAULT takes names of realm, of none if it is empty.
func Parse(rules, mechanism, realm string) (*Rules, error) {
	r := &Rules{realm: realm}
	switch strings.ToLower(mechanism) {
	case "", Hadoop:
	case MIT:
		r.mit = true
	default:
		return nil, fmt.Errorf("no mechanism %q: there are %s and %s", mechanism, Hadoop, MIT)
	}
	for rest := strings.TrimSpace(rules); rest != ""; {
		m := ruleParser.FindStringSubmatch(rest)
		if m == nil {
			return nil, fmt.Errorf("invalid rule: %s", rest)
		}
		next, err := parseRule(m)
		if err != nil {
			return nil, fmt.Errorf("rule %s: %w", m[1], err)
		}
		r.list = append(r.list, next)
		rest = rest[len(m[0]):]
	}
	return r, nil
}

// parseRule takes what ruleParser has found.
func parseRule(m []string) (r rule, err error) {
	r = rule{text: m[1], realm: m[2] != "", format: m[5], to: m[10], all: m[11] != "", lower: m[12] != ""}
	if r.lower && !r.realm {
		r.text += "/L"
	}
	if r.realm {
		return r, nil
	}
	if r.components, err = strconv.Atoi(m[4]); err != nil {
		return r, fmt.Errorf("the number of components: %w", err)
	}
	if m[6] != "" {
		if r.match, err = regexp.Compile(`\A(?:` + m[7] + `)\z`); err != nil {
			return r, err
		}
	}
	if m[8] != "" {
		if r.from, err = regexp.Compile(m[9]); err != nil {
			return r, err
		}
		r.next, err = regexp.Compile(`\A(?s:.)(?:` + m[9] + `)`)
	}
	return r, err
}

// Short is the short name of a principal, such as "ada" of "ada/host@REALM". A name of one
// part without a realm is one already. The error is that of Hadoop.
func (r *Rules) Short(name string) (string, error) {
	m := nameParser.FindStringSubmatch(name)
	if m == nil {
		if strings.Contains(name, "@") {
			return "", exception.New(exception.JavaIllegalArgument, "Malformed Kerberos name: %s", name)
		}
		return name, nil
	}
	service, host, realm := m[1], m[3], m[5]
	if host == "" && realm == "" {
		return service, nil
	}
	params := []string{realm, service}
	if host != "" {
		params = append(params, host)
	}
	for i := range r.list {
		short, applies, err := r.apply(&r.list[i], params)
		if err != nil {
			return "", exception.New(exception.JavaIllegalArgument, "Illegal principal name %s: %v", name, err)
		}
		if applies {
			return short, nil
		}
	}
	if r.mit {
		return name, nil
	}
	return "", exception.New(exception.JavaIllegalArgument, "Illegal principal name %s: %sNoMatchingRule: No rules applied to %s", name, class, name)
}

// class is where Hadoop's exceptions of names are.
const class = "org.apache.hadoop.security.authentication.util.KerberosName$"

func (r *Rules) apply(u *rule, params []string) (short string, applies bool, err error) {
	switch {
	case u.realm:
		if applies = r.realm != "" && r.realm == params[0]; applies {
			short = params[1]
		}
	case len(params)-1 == u.components:
		if short, err = fill(u.format, params); err != nil {
			return "", false, err
		}
		if applies = u.match == nil || u.match.MatchString(short); applies && u.from != nil {
			if short, err = u.replace(short); err != nil {
				return "", false, err
			}
		}
	}
	if !applies {
		return "", false, nil
	}
	if !r.mit && strings.ContainsAny(short, "/@") {
		return "", false, fmt.Errorf("%sNoMatchingRule: Non-simple name %s after auth_to_local rule %s", class, short, u.text)
	}
	if u.lower {
		short = strings.ToLower(short)
	}
	return short, true, nil
}

// fill puts parameters in the place of $0, $1 and so on.
func fill(format string, params []string) (string, error) {
	var out strings.Builder
	for format != "" {
		m := parameter.FindStringSubmatch(format)
		out.WriteString(m[1])
		if m[2] != "" {
			n, err := strconv.Atoi(m[3])
			if err != nil {
				return "", fmt.Errorf("%sBadFormatString: bad format in username mapping in %s", class, m[3])
			}
			if n >= len(params) {
				return "", fmt.Errorf("%sBadFormatString: index %d from %s is outside of the valid range 0 to %d", class, n, format, len(params)-1)
			}
			out.WriteString(params[n])
		}
		format = format[len(m[0]):]
	}
	return out.String(), nil
}

// replace replaces what matches: the first match, or all of them as Java finds them, which
// takes one of nothing behind another match.
func (u *rule) replace(base string) (string, error) {
	matches := u.from.FindAllStringSubmatchIndex(base, -1)
	if !u.all {
		matches = matches[:min(1, len(matches))]
	}
	var out []byte
	var err error
	at := 0
	for i, m := range matches {
		out = append(out, base[at:m[0]]...)
		if out, err = u.expand(out, base, m); err != nil {
			return "", err
		}
		at = m[1]
		if !u.all || m[0] == m[1] || i+1 < len(matches) && matches[i+1][0] == at {
			continue
		}
		_, before := lastRune(base[:at])
		if n := u.next.FindStringSubmatchIndex(base[before:]); n != nil && before+n[1] == at {
			empty := make([]int, len(m))
			for j := range empty {
				empty[j] = at
			}
			if out, err = u.expand(out, base, empty); err != nil {
				return "", err
			}
		}
	}
	return string(append(out, base[at:]...)), nil
}

// lastRune is the last rune of s, which is not empty, and where it begins.
func lastRune(s string) (last rune, at int) {
	for i, r := range s {
		last, at = r, i
	}
	return last, at
}

// expand appends what stands for a match, by Java's rules: $1 is a group, \ takes the
// next character as it is.
func (u *rule) expand(out []byte, base string, match []int) ([]byte, error) {
	groups := len(match)/2 - 1
	for i := 0; i < len(u.to); i++ {
		switch c := u.to[i]; {
		case c == '\\' && i+1 < len(u.to):
			i++
			out = append(out, u.to[i])
		case c == '\\':
			return nil, fmt.Errorf("%s: character to be escaped is missing", exception.JavaIllegalArgument)
		case c == '$':
			n, digits := 0, 0
			for j := i + 1; j < len(u.to) && '0' <= u.to[j] && u.to[j] <= '9'; j++ {
				more := 10*n + int(u.to[j]-'0')
				if digits > 0 && more > groups {
					break
				}
				n, digits = more, digits+1
			}
			if digits == 0 {
				return nil, fmt.Errorf("%s: Illegal group reference", exception.JavaIllegalArgument)
			}
			if n > groups {
				return nil, fmt.Errorf("%s: No group %d", exception.IndexOutOfBounds, n)
			}
			i += digits
			if match[2*n] >= 0 {
				out = append(out, base[match[2*n]:match[2*n+1]]...)
			}
		default:
			out = append(out, c)
		}
	}
	return out, nil
}
