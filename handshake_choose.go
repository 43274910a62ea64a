package verbena

import (
	"fmt"
	"net"

	"github.com/verbena-data/verbena/internal/hello"
)

// choose takes the first candidate that this side can serve, and says of the
// others why not.
func (h *handshake) choose(offer hello.Hello) (*hello.Answer, *Service, *ticket) {
	refuse := func(code hello.Code, text string) *hello.Answer {
		return &hello.Answer{Least: hello.LeastVersion, Greatest: hello.Version, Refusal: &hello.Refusal{Code: code, Text: text}}
	}
	version, err := hello.Choose(offer.Least, offer.Greatest)
	if err != nil {
		return refuse(hello.CodeVersion, err.Error()), nil, nil
	}
	s, lane := h.l.serviceFor(offer.Service), offer.Service == laneService
	if lane {
		s = h.l.own
	}
	if !offer.Probe && s == nil {
		return refuse(hello.CodeService, fmt.Sprintf("%s is not offered here", offer.Service)), nil, nil
	}
	answer := &hello.Answer{Least: version, Greatest: version}
	for _, c := range offer.Candidates {
		if lane && c.Name != TransportTCP {
			continue
		}
		accept, t, no := h.consider(c, offer)
		if no == nil {
			answer.Accept = accept
			return answer, s, t
		}
		answer.Verdicts = append(answer.Verdicts, hello.Verdict{Name: c.Name, Text: no.text})
		if no.passing {
			answer.Passing = append(answer.Passing, c.Name)
		}
		if no.err != nil {
			h.l.log.Debug("transport cannot be offered", "peer", h.conn.RemoteAddr(), "transport", c.Name, "error", no.err)
		}
	}
	answer.Least, answer.Greatest = hello.LeastVersion, hello.Version
	answer.Refusal = &hello.Refusal{Code: hello.CodeNoTransport, Text: "none of the candidates can be used"}
	return answer, s, nil
}

// A verdict says why a candidate cannot be served: to the peer in words that tell
// nothing of this side's users, processes and sockets, to this side by the error.
type verdict struct {
	text    string
	passing bool
	err     error
}

// Verdicts that hold for as long as both processes run.
const (
	noProvider = "no such provider there"
	noDevice   = "no device of it there"
	otherHost  = "it is on another host"
	otherNet   = "it is in another network namespace"
	noTCP      = "it needs a TCP connection"
)

var lastingVerdicts = []string{noProvider, noDevice, otherHost, otherNet, noTCP}

// consider tells whether a candidate can be served.
func (h *handshake) consider(c hello.Candidate, offer hello.Hello) (*hello.Accept, *ticket, *verdict) {
	if c.Name == TransportTCP {
		return &hello.Accept{Name: c.Name}, nil, nil
	}
	r := h.l.r
	t := r.transport(c.Name)
	var unavailable error
	if t != nil {
		r.want(t)
		unavailable = t.unavailable()
	}
	switch {
	case t == nil:
		return nil, nil, &verdict{text: noProvider}
	case unavailable != nil:
		return nil, nil, &verdict{text: noDevice, passing: passing(unavailable), err: unavailable}
	case !t.crossesHosts() && string(offer.Host) != string(r.host[:]):
		return nil, nil, &verdict{text: otherHost}
	case t.oneNetwork() && apart(offer.Network, r.network):
		return nil, nil, &verdict{text: otherNet}
	case t.streams():
		if _, unix := h.conn.(*net.UnixConn); unix {
			return nil, nil, &verdict{text: noTCP}
		}
		return &hello.Accept{Name: c.Name}, nil, nil
	}
	dev, err := t.reaching(hello.DecodeAddresses(c.Parameters)...)
	if err != nil {
		// It speaks of routes and ports, which the peer's operator wants to know.
		return nil, nil, &verdict{text: err.Error(), passing: passing(err)}
	}
	address, err := r.publish(dev)
	if err != nil {
		return nil, nil, &verdict{text: "its device there does not listen: " + publicReason(err), passing: passing(err), err: err}
	}
	accept := &hello.Accept{Name: c.Name, Address: address}
	if offer.Probe {
		return accept, nil, nil
	}
	token := r.tickets.issue(h)
	accept.Token = token.token[:]
	return accept, token, nil
}

// apart tells whether two processes of one host are in different network
// namespaces, as far as both have said.
func apart(a, b []byte) bool { return len(a) > 0 && len(b) > 0 && string(a) != string(b) }

// oneNetwork tells whether every device wants its peers in this process's
// network namespace.
func (t *transport) oneNetwork() bool {
	devices := t.devices()
	for _, d := range devices {
		if !d.attributes.OneNetwork {
			return false
		}
	}
	return len(devices) > 0
}

// selection is how this side sees the choice.
func (h *handshake) selection(offer hello.Hello, answer *hello.Answer) Selection {
	s := Selection{Peer: h.conn.RemoteAddr().String(), SameHost: string(offer.Host) == string(h.l.r.host[:])}
	for _, c := range offer.Candidates {
		s.Candidates = append(s.Candidates, Candidate{Transport: c.Name})
	}
	for _, f := range offer.Failed {
		if s.candidate(f.Name) == nil {
			s.Candidates = append(s.Candidates, Candidate{Transport: f.Name, Reason: "the peer: " + f.Text})
		}
	}
	for _, v := range answer.Verdicts {
		s.note(v.Name, v.Text)
	}
	for _, name := range answer.Passing {
		s.pass(name)
	}
	s.choose(answer.Accept.Name, "the first of the peer's candidates that can be used")
	return s
}
