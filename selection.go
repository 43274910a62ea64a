package verbena

import (
	"bytes"
	"fmt"
	"strings"
	"text/tabwriter"
)

// Names of transports beside those of providers.
const (
	// TransportAuto lets the runtime choose.
	TransportAuto = "auto"
	// TransportTCP frames messages on the TCP connection itself.
	TransportTCP = "tcp"
)

// A Candidate is a transport that was considered.
type Candidate struct {
	Transport string `json:"transport"`
	Chosen    bool   `json:"chosen"`
	Reason    string `json:"reason"` // why it was taken or left
	// Passing says that it was left for a reason of that moment, such as a lack of
	// memory, and that a later dial may get it.
	Passing bool `json:"passing,omitempty"`

	// later says that it may come back even so, perhaps after long: a device that was
	// lost, a port that was down, a path that broke.
	later bool
}

// A Selection tells which transport was chosen towards a peer, and why.
type Selection struct {
	Peer      string `json:"peer"`
	Transport string `json:"transport"` // empty if there is none
	// Device is the local device that carries the transport, by its own name. It
	// is empty for TCP and in a selection that was not connected.
	Device string `json:"device,omitempty"`
	// Rule is the rule that decided, as [Rule.String] shows it, or empty.
	Rule     string `json:"rule,omitempty"`
	SameHost bool   `json:"same_host"`
	// OneSided tells who carries out one-sided operations: the device, or, where it
	// says that they are emulated, the peer's runtime, by messages.
	OneSided string `json:"one_sided,omitempty"`
	// Checksums says that the devices compare checksums of all bytes: those of iWARP, unless
	// both ends do without.
	Checksums bool `json:"checksums,omitempty"`
	// Files tells how files are read that an end exposes: through their descriptors, or,
	// where it says that it is emulated, by the runtime that exposes them.
	Files string `json:"files,omitempty"`
	// Candidates are all that were considered, in order of preference; those that the
	// rule does not allow come last.
	Candidates []Candidate `json:"candidates"`
}

// What OneSided says.
const (
	oneSidedByDevice  = "by the device"
	oneSidedNoAtomics = "by the device, without atomic operations: the device has none"
	oneSidedMixed     = "by the device; atomic operations, which it lacks, are emulated: the peer's runtime serves them as messages"
	oneSidedOverTCP   = "emulated: over TCP the peer's runtime serves them as messages"
	oneSidedUnknown   = "none: the peer's release does not know them"
	filesByDescriptor = "through descriptors, which are handed over once"
	filesServed       = "emulated: the peer's runtime reads them and answers by messages"
)

// Passing tells whether a transport that is preferred to the one chosen was left
// for a reason that may pass. Whoever keeps such an endpoint for long should dial
// again after a while and change over if the new one is over a better transport.
func (s Selection) Passing() bool {
	for _, c := range s.Candidates {
		if c.Chosen {
			return false
		}
		if c.Passing {
			return true
		}
	}
	return false
}

// String is a small table for people.
func (s Selection) String() string {
	var b bytes.Buffer
	where := "another host"
	if s.SameHost {
		where = "this host"
	}
	transport := s.Transport
	if transport == "" {
		transport = "none"
	}
	fmt.Fprintf(&b, "%s (%s): %s\n", s.Peer, where, transport)
	if s.Rule != "" {
		fmt.Fprintf(&b, "  by rule %s\n", s.Rule)
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, c := range s.Candidates {
		mark := "-"
		if c.Chosen {
			mark = "*"
		}
		fmt.Fprintf(w, "  %s %s\t%s\n", mark, c.Transport, c.Reason)
	}
	_ = w.Flush() // into memory
	return b.String()
}

func (s Selection) reasons() string {
	if len(s.Candidates) == 0 {
		return "there is none"
	}
	var parts []string
	for _, c := range s.Candidates {
		parts = append(parts, c.Transport+": "+c.Reason)
	}
	return strings.Join(parts, "; ")
}

func (s *Selection) candidate(name string) *Candidate {
	for i := range s.Candidates {
		if s.Candidates[i].Transport == name {
			return &s.Candidates[i]
		}
	}
	return nil
}

// note sets the reason of a candidate that is there; a peer cannot add any.
func (s *Selection) note(name, reason string) {
	if c := s.candidate(name); c != nil {
		c.Reason = reason
	}
}

// missed are the candidates before the one chosen that may come back, and whether
// one of them was left for a reason that may pass soon.
func (s *Selection) missed() (names []string, soon bool) {
	for _, c := range s.Candidates {
		if c.Chosen {
			break
		}
		if c.Passing || c.later {
			names, soon = append(names, c.Transport), soon || c.Passing
		}
	}
	return names, soon
}

// pass marks a candidate that may come back.
func (s *Selection) pass(name string) {
	if c := s.candidate(name); c != nil {
		c.Passing = true
	}
}

func (s *Selection) choose(name, reason string) {
	s.Transport = name
	for i := range s.Candidates {
		c := &s.Candidates[i]
		switch {
		case c.Transport == name:
			c.Chosen, c.Reason, c.Passing = true, reason, false
		case c.Reason == "":
			c.Reason = "not needed: " + name + " is preferred"
		}
	}
}
