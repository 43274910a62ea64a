package page

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/status"
)

// A source is a runtime, which tells of its devices, endpoints, pools and memory.
type source struct {
	stats     func() verbena.Stats
	endpoints func() []verbena.EndpointStats
}

// Status implements [status.Source].
func (r source) Status() status.Section {
	s := r.stats()
	m := s.Memory
	var limit, of, used, room any // nil: no limit is known
	if m.Limit > 0 {
		limit, of, used, room = m.Limit, m.LimitOf, m.Used, m.Room
	}
	section := status.Section{Name: "runtime", Title: "Runtime", Facts: []status.Fact{
		{Column: status.Column{Key: "closed", Title: "Closed"}, Value: s.Closed},
		{Column: status.Column{Key: "memory_pressure", Title: "Memory's pressure"}, Value: strings.TrimSuffix(m.Pressure+": "+m.Why, ": ")},
		{Column: status.Column{Key: "memory_limit_bytes", Title: "Memory's limit", Unit: status.Bytes}, Value: limit},
		{Column: status.Column{Key: "memory_limit_of", Title: "Which is that of"}, Value: of},
		{Column: status.Column{Key: "memory_used_bytes", Title: "Used of it by all", Unit: status.Bytes}, Value: used},
		{Column: status.Column{Key: "memory_room_bytes", Title: "Left", Unit: status.Bytes}, Value: room},
		{Column: status.Column{Key: "memory_stalled_seconds", Title: "Waited for memory"}, Value: m.Stalled},
	}}
	if s.Closed {
		section.Note = "The runtime is closed, or closes: it sets up no new endpoint, and those that are left come to their end."
	}
	section.Tables = []status.Table{devices(&s), traffic(&s), endpoints(r.endpoints()), pools(&s), memory(&s), counters(&s)}
	return section
}

// devices are what carries endpoints, and the providers that have none.
func devices(s *verbena.Stats) status.Table {
	t := status.Table{Name: "devices", Title: "Devices and transports", Columns: []status.Column{
		{Key: "transport", Title: "Transport"}, {Key: "device", Title: "Device"}, {Key: "usable", Title: "Usable"}, {Key: "why", Title: "Why not"},
		{Key: "class", Title: "Class"}, {Key: "reaches", Title: "Reaches"}, {Key: "kernel_bypass", Title: "Kernel bypass"}, {Key: "capabilities", Title: "Capabilities"},
		{Key: "events", Title: "Events"},
	}}
	for i := range s.Devices {
		d := &s.Devices[i]
		a := &d.Attributes
		row := []any{d.Transport, d.Device, d.Gone == nil, d.Gone, a.Class.String(), "this host", a.KernelBypass, strings.Join(a.Names(), " "), events(d.Events)}
		if a.CrossesHosts {
			row[5] = "any host"
		}
		if d.Device == "" { // TCP
			row[1], row[4], row[5], row[6], row[7] = nil, nil, "any host", false, nil
		}
		t.Rows = append(t.Rows, row)
	}
	for _, transport := range slices.Sorted(maps.Keys(s.Unavailable)) {
		t.Rows = append(t.Rows, []any{transport, nil, false, s.Unavailable[transport], nil, nil, nil, nil, []string{}})
	}
	return t
}

func events(counts map[rdma.EventKind]uint64) []string {
	all := []string{}
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%s: %d times", kind, counts[kind]))
	}
	return all
}

// traffic is what the endpoints of devices have carried, those that are gone included.
func traffic(s *verbena.Stats) status.Table {
	t := status.Table{Name: "traffic", Title: "Traffic", Columns: slices.Concat([]status.Column{
		{Key: "transport", Title: "Transport"}, {Key: "device", Title: "Device"},
		{Key: "endpoints", Title: "Open", Unit: "endpoints"}, {Key: "opened", Title: "Opened", Unit: "endpoints"}, {Key: "failed", Title: "Failed", Unit: "endpoints"},
	}, carried)}
	for i := range s.Devices {
		d := &s.Devices[i]
		row := []any{d.Transport, nil, d.Endpoints, d.Opened, d.Failed}
		if d.Device != "" {
			row[1] = d.Device
		}
		t.Rows = append(t.Rows, append(row, carriedBy(d.Sent, d.Received, d.Operations, d.Stalls, d.Stalled)...))
	}
	return t
}

// carried are the columns of carriedBy.
var carried = []status.Column{
	{Key: "sent_messages", Title: "Sent", Unit: "messages"}, {Key: "sent_bytes", Title: "Sent", Unit: status.Bytes},
	{Key: "received_messages", Title: "Received", Unit: "messages"}, {Key: "received_bytes", Title: "Received", Unit: status.Bytes},
	{Key: "puts", Title: "Puts", Unit: "operations"}, {Key: "gets", Title: "Gets", Unit: "operations"}, {Key: "atomics", Title: "Atomics", Unit: "operations"},
	{Key: "one_sided_bytes", Title: "Put and got", Unit: status.Bytes},
	{Key: "stalls", Title: "Sender stalls", Unit: "times"}, {Key: "stalled_seconds", Title: "Stalled for"},
}

func carriedBy(sent, received verbena.Traffic, o verbena.Operations, stalls uint64, stalled time.Duration) []any {
	return []any{sent.Messages, sent.Bytes, received.Messages, received.Bytes, o.Puts, o.Gets, o.Atomics, o.Bytes, stalls, stalled}
}

// endpoints are those that are not closed, with why they have their transports, and have ended.
func endpoints(all []verbena.EndpointStats) status.Table {
	t := status.Table{Name: "endpoints", Title: "Endpoints", Empty: "No endpoint is open.", Columns: slices.Concat([]status.Column{
		{Key: "service", Title: "Service"}, {Key: "peer", Title: "Peer"}, {Key: "local", Title: "This side"}, {Key: "group", Title: "Group"},
		{Key: "dialled", Title: "Dialled here"}, {Key: "age_seconds", Title: "Open for"}, {Key: "ended", Title: "Has ended"},
		{Key: "transport", Title: "Transport"}, {Key: "device", Title: "Device"}, {Key: "why", Title: "Why"}, {Key: "left", Title: "Left out"}, {Key: "one_sided", Title: "One-sided operations"},
		{Key: "credits", Title: "Credits", Unit: "messages"},
	}, carried)}
	now := time.Now()
	for i := range all {
		e := &all[i]
		why, left := reasons(&e.Selection)
		row := []any{e.Service, e.Remote, e.Local, nil, e.Dialled, now.Sub(e.Began), e.Err, e.Selection.Transport, nil, why, left, e.Selection.OneSided, nil}
		if e.Group != "" {
			row[3] = e.Group
		}
		if e.Selection.Device != "" {
			row[8] = e.Selection.Device
		}
		if e.Credits >= 0 {
			row[12] = e.Credits
		}
		t.Rows = append(t.Rows, append(row, carriedBy(e.Sent, e.Received, e.Operations, e.Stalls, e.Stalled)...))
	}
	return t
}

// reasons are why a transport was taken, and others left.
func reasons(s *verbena.Selection) (why string, left []string) {
	left = []string{}
	for _, c := range s.Candidates {
		if c.Chosen {
			why = c.Reason
		} else {
			left = append(left, c.Transport+": "+c.Reason)
		}
	}
	if s.Rule != "" {
		why += " (by rule " + s.Rule + ")"
	}
	return why, left
}

// pools are those of endpoints.
func pools(s *verbena.Stats) status.Table {
	t := status.Table{Name: "endpoint_pools", Title: "Pools of endpoints", Empty: "There is none.", Columns: []status.Column{
		{Key: "pool", Title: "Pool"}, {Key: "service", Title: "Service"}, {Key: "peers", Title: "Peers", Unit: "peers"},
		{Key: "open", Title: "Open", Unit: "endpoints"}, {Key: "busy", Title: "Busy", Unit: "endpoints"}, {Key: "waiting", Title: "Waiting", Unit: "requests"},
		{Key: "requests", Title: "Served", Unit: "requests"}, {Key: "waited", Title: "Had to wait", Unit: "requests"}, {Key: "left", Title: "Got none", Unit: "requests"},
		{Key: "opened", Title: "Opened", Unit: "endpoints"}, {Key: "failed", Title: "Failed", Unit: "dials"}, {Key: "lost", Title: "Lost", Unit: "endpoints"},
		{Key: "idle", Title: "Closed idle", Unit: "endpoints"}, {Key: "replaced", Title: "Replaced by better", Unit: "endpoints"},
	}}
	for i := range s.EndpointPools {
		p := &s.EndpointPools[i]
		t.Rows = append(t.Rows, []any{p.Name, p.Service, p.Peers, p.Open, p.Busy, p.Waiting, p.Requests, p.Waited, p.Left, p.Opened, p.Failed, p.Lost, p.Idle, p.Replaced})
	}
	return t
}

// memory is what is registered and lent, by purpose.
func memory(s *verbena.Stats) status.Table {
	t := status.Table{Name: "memory", Title: "Memory for messages", Empty: "There is none yet.", Columns: []status.Column{
		{Key: "transport", Title: "Transport"}, {Key: "device", Title: "Device"}, {Key: "group", Title: "Group"}, {Key: "pool", Title: "For"},
		{Key: "used_bytes", Title: "Used", Unit: status.Bytes}, {Key: "registered_bytes", Title: "Registered", Unit: status.Bytes}, {Key: "limit_bytes", Title: "Limit", Unit: status.Bytes},
		{Key: "squeezed", Title: "Kept from growing"}, {Key: "waiting", Title: "Waiting", Unit: "requests"},
	}}
	for i := range s.Devices {
		d := &s.Devices[i]
		for _, p := range d.Pools {
			row := []any{d.Transport, nil, nil, p.Name, p.Used, p.Registered, p.Limit, p.Squeezed, p.Waiting}
			if d.Device != "" {
				row[1] = d.Device
			}
			if p.Group != "" {
				row[2] = p.Group
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// counters are those that providers have.
func counters(s *verbena.Stats) status.Table {
	t := status.Table{Name: "provider_counters", Title: "Counters of providers", Empty: "There are none.", Columns: []status.Column{
		{Key: "transport", Title: "Transport"}, {Key: "counter", Title: "Counter"}, {Key: "value", Title: "Value", Unit: "times"},
	}}
	for _, transport := range slices.Sorted(maps.Keys(s.Counters)) {
		for _, name := range slices.Sorted(maps.Keys(s.Counters[transport])) {
			t.Rows = append(t.Rows, []any{transport, name, s.Counters[transport][name]})
		}
	}
	return t
}
