package verbena

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// An Intent is what a request is about, as rules see it.
type Intent struct {
	// Operation is a name that the application gives the request, such as
	// "read-block". Empty: the name of the service.
	Operation string
	// Size is that of the greater one of request and answer, in bytes, as far as it
	// is known. 0: it is not; then no rule decides that asks for a size.
	Size int64
}

// A Rule says over which transports requests may go. It decides for those that meet
// all of its conditions.
type Rule struct {
	// Name stands in selections and errors: a word. Default: "rule 1", and so on.
	Name string

	// Operation and Peer are patterns: text in which one * may stand for any text.
	// That of Peer is held against the host that was dialled, or against host and port
	// if it has a port, or against the whole address of a Unix socket ("unix:*").
	// A prefix such as 10.1.0.0/16 stands for peers that are dialled by such an
	// address; names are not resolved for it. Empty: any.
	Operation, Peer string
	// Least and Most bound the size in bytes, both included. 0: no bound.
	Least, Most int64

	// Only, if it is not empty, are the transports that are allowed. Never are some
	// that are not. Prefer come before all others, in this order. All by the names of
	// providers, and "tcp".
	Only, Prefer, Never []string
}

// Rules choose transports: the first rule whose conditions a request meets decides.
// If there is none, all transports are allowed, in the order of [Config.Providers].
type Rules []Rule

// maxRules bounds what is looked through for each request.
const maxRules = 64

// ParseRule reads a rule from text, clauses with blanks between them: an optional
// name with a colon, conditions, transports:
//
//	bulk: operation=read-* peer=10.1.0.0/16 size=1M.. only=tcp,shm prefer=tcp
//
// The conditions are operation, peer and size (8K..64K, ..8K, 1M.., in bytes or with
// K, M, G), the transports only, prefer and never, with commas.
func ParseRule(text string) (Rule, error) {
	var r Rule
	fail := func(format string, args ...any) (Rule, error) {
		return Rule{}, fmt.Errorf("verbena: rule %q: %w", text, fmt.Errorf(format, args...))
	}
	clauses := strings.Fields(text)
	if len(clauses) > 0 && !strings.Contains(clauses[0], "=") {
		name, ok := strings.CutSuffix(clauses[0], ":")
		if !ok || name == "" {
			return fail("%q: want NAME: or a clause, such as only=shm,tcp", clauses[0])
		}
		r.Name, clauses = name, clauses[1:]
	}
	if len(clauses) == 0 {
		return fail("it says nothing: want clauses, such as size=1M.. only=tcp")
	}
	seen := map[string]bool{}
	for _, clause := range clauses {
		key, value, ok := strings.Cut(clause, "=")
		if !ok || value == "" {
			return fail("%q: want NAME=VALUE", clause)
		}
		if seen[key] {
			return fail("%s is there twice", key)
		}
		seen[key] = true
		var err error
		switch key {
		case "operation":
			r.Operation = value
		case "peer":
			r.Peer = value
		case "size":
			r.Least, r.Most, err = parseRange(value)
		case "only":
			r.Only = strings.Split(value, ",")
		case "prefer":
			r.Prefer = strings.Split(value, ",")
		case "never":
			r.Never = strings.Split(value, ",")
		default:
			return fail("no clause %q; there are operation, peer, size, only, prefer, never", key)
		}
		if err != nil {
			return fail("%s: %w", clause, err)
		}
	}
	if err := r.check(); err != nil {
		return fail("%w", err)
	}
	return r, nil
}

// String is the rule as [ParseRule] takes it.
func (r Rule) String() string {
	var b strings.Builder
	clause := func(key, value string) {
		if value == "" {
			return
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(key + "=" + value)
	}
	if r.Name != "" {
		b.WriteString(r.Name + ":")
	}
	clause("operation", r.Operation)
	clause("peer", r.Peer)
	if r.Least > 0 || r.Most > 0 {
		size := ".."
		if r.Least > 0 {
			size = formatBytes(r.Least) + size
		}
		if r.Most > 0 {
			size += formatBytes(r.Most)
		}
		clause("size", size)
	}
	clause("only", strings.Join(r.Only, ","))
	clause("prefer", strings.Join(r.Prefer, ","))
	clause("never", strings.Join(r.Never, ","))
	return b.String()
}

// byteUnits are what sizes may end in.
var byteUnits = []struct {
	name  byte
	shift int
}{{'G', 30}, {'M', 20}, {'K', 10}}

func formatBytes(n int64) string {
	for _, u := range byteUnits {
		if n%(1<<u.shift) == 0 {
			return strconv.FormatInt(n>>u.shift, 10) + string(u.name)
		}
	}
	return strconv.FormatInt(n, 10)
}

func parseBytes(s string) (int64, error) {
	shift := 0
	for _, u := range byteUnits {
		if digits, ok := strings.CutSuffix(strings.ToUpper(s), string(u.name)); ok {
			s, shift = digits, u.shift
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 || n > math.MaxInt64>>shift {
		return 0, errors.New("want bytes from 1 up, such as 512, 64K or 1M")
	}
	return n << shift, nil
}

func parseRange(s string) (least, most int64, err error) {
	from, to, ok := strings.Cut(s, "..")
	if !ok || from == "" && to == "" {
		return 0, 0, errors.New("want a range, such as 1M.. or ..8K or 8K..64K")
	}
	if from != "" {
		least, err = parseBytes(from)
	}
	if to != "" && err == nil {
		most, err = parseBytes(to)
	}
	return least, most, err
}

// check refuses what means nothing in any runtime.
func (r *Rule) check() error {
	if strings.ContainsAny(r.Name, ":;=,\"") || len(strings.Fields(r.Name)) > 1 {
		return fmt.Errorf("the name %q is no word", r.Name)
	}
	for _, pattern := range []string{r.Operation, r.Peer} {
		if strings.Count(pattern, "*") > 1 {
			return fmt.Errorf("%q: one * at most", pattern)
		}
		if strings.ContainsAny(pattern, "; \t\n") {
			return fmt.Errorf("%q: no blanks and no semicolons", pattern)
		}
	}
	if strings.Contains(r.Peer, "/") && !strings.HasPrefix(r.Peer, "unix:") {
		p, err := netip.ParsePrefix(r.Peer)
		if err != nil {
			return fmt.Errorf("peer %q: want a prefix of addresses, such as 10.1.0.0/16: %w", r.Peer, err)
		}
		if p != p.Masked() {
			return fmt.Errorf("peer %q has bits behind its prefix: %s is meant", r.Peer, p.Masked())
		}
	}
	switch {
	case r.Least < 0 || r.Most < 0:
		return errors.New("a negative size")
	case r.Most > 0 && r.Least > r.Most:
		return fmt.Errorf("no size is between %s and %s", formatBytes(r.Least), formatBytes(r.Most))
	}
	for _, list := range []struct {
		name       string
		transports []string
	}{{"only", r.Only}, {"prefer", r.Prefer}, {"never", r.Never}} {
		for i, name := range list.transports {
			switch {
			case name == "" || name == TransportAuto || strings.ContainsAny(name, "; \t\n"):
				return fmt.Errorf("%s: %q is no transport", list.name, name)
			case slices.Contains(list.transports[:i], name):
				return fmt.Errorf("%s: %s is there twice", list.name, name)
			}
		}
	}
	for _, name := range r.Never {
		if slices.Contains(r.Only, name) || slices.Contains(r.Prefer, name) {
			return fmt.Errorf("never %s, and yet it is allowed or preferred", name)
		}
	}
	for _, name := range r.Prefer {
		if len(r.Only) > 0 && !slices.Contains(r.Only, name) {
			return fmt.Errorf("%s is preferred and not allowed", name)
		}
	}
	return nil
}

// unconditional tells whether the rule decides for all requests.
func (r *Rule) unconditional() bool {
	return r.Operation == "" && r.Peer == "" && r.Least == 0 && r.Most == 0
}

// Check refuses rules with the reason: transports that are not among known, values
// that contradict each other, rules that leave no transport, and rules behind one
// that decides for everything.
func (rs Rules) Check(known []string) error {
	if len(rs) > maxRules {
		return fmt.Errorf("verbena: %d rules, at most %d", len(rs), maxRules)
	}
	names := map[string]bool{}
	for i := range rs {
		r := &rs[i]
		fail := func(format string, args ...any) error {
			return fmt.Errorf("verbena: %s (%s): %w", rs.name(i), r, fmt.Errorf(format, args...))
		}
		if err := r.check(); err != nil {
			return fail("%w", err)
		}
		for _, name := range slices.Concat(r.Only, r.Prefer, r.Never) {
			if !slices.Contains(known, name) {
				return fail("%q is no transport here; there are %s", name, strings.Join(known, ", "))
			}
		}
		if order, _ := r.order(known); len(order) == 0 {
			return fail("it leaves no transport")
		}
		if names[rs.name(i)] {
			return fail("another rule has this name")
		}
		names[rs.name(i)] = true
		if i > 0 && rs[i-1].unconditional() {
			return fail("it never decides, since %s has no condition", rs.name(i-1))
		}
	}
	return nil
}

// name is that of a rule in selections and errors.
func (rs Rules) name(i int) string {
	if rs[i].Name != "" {
		return rs[i].Name
	}
	return fmt.Sprintf("rule %d", i+1)
}

// named returns a rule that has its name.
func (rs Rules) named(i int) *Rule {
	r := rs[i]
	r.Name = rs.name(i)
	return &r
}

// order puts transports, which are in the order of the runtime, into that of the
// rule. It returns those that are not allowed apart, and works on nil, no rule.
func (r *Rule) order(transports []string) (order, left []string) {
	if r == nil {
		return transports, nil
	}
	allowed := func(name string) bool {
		return (len(r.Only) == 0 || slices.Contains(r.Only, name)) && !slices.Contains(r.Never, name)
	}
	for _, name := range r.Prefer {
		if slices.Contains(transports, name) {
			order = append(order, name)
		}
	}
	for _, name := range transports {
		switch {
		case slices.Contains(r.Prefer, name):
		case allowed(name):
			order = append(order, name)
		default:
			left = append(left, name)
		}
	}
	return order, left
}

// about tells whether the rule decides for requests to addr that it is not asked
// about otherwise.
func (r *Rule) about(addr string) bool {
	switch {
	case r.Peer == "":
		return true
	case strings.HasPrefix(addr, "unix:"):
		return fits(r.Peer, addr)
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	if prefix, err := netip.ParsePrefix(r.Peer); err == nil {
		ip, err := netip.ParseAddr(host)
		return err == nil && prefix.Contains(ip.Unmap().WithZone(""))
	}
	if _, _, err := net.SplitHostPort(r.Peer); err == nil {
		return fits(r.Peer, addr)
	}
	return fits(strings.Trim(r.Peer, "[]"), host)
}

// wants tells whether an intent meets the rule's conditions. It allocates nothing.
func (r *Rule) wants(operation string, size int64) bool {
	switch {
	case r.Operation != "" && !fits(r.Operation, operation):
		return false
	case r.Least == 0 && r.Most == 0:
		return true
	}
	return size > 0 && size >= r.Least && (r.Most == 0 || size <= r.Most)
}

// fits tells whether text fits a pattern.
func fits(pattern, text string) bool {
	before, after, any := strings.Cut(pattern, "*")
	if !any {
		return pattern == text
	}
	return len(text) >= len(before)+len(after) && strings.HasPrefix(text, before) && strings.HasSuffix(text, after)
}

// decide returns the place of the rule that decides, or -1.
func (rs Rules) decide(addr, service string, intent Intent) int {
	for i := range rs {
		if rs[i].wants(intent.operation(service), intent.Size) && rs[i].about(addr) {
			return i
		}
	}
	return -1
}

func (i Intent) operation(service string) string {
	if i.Operation == "" {
		return service
	}
	return i.Operation
}
