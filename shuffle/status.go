package shuffle

import "github.com/verbena-data/verbena/status"

// NewStatus returns what exchanges of this process tell, for people and programs: see package
// status/page. It may outlive them. Their names differ.
func NewStatus(exchanges ...*Exchange) status.Source { return exchangesStatus(exchanges) }

type exchangesStatus []*Exchange

// A figure is a value of an exchange, as the page has it.
type figure struct {
	status.Column
	of func(*Exchange, *Stats) any
}

var figures = []figure{
	{status.Column{Key: "exchange", Title: "Exchange"}, func(x *Exchange, _ *Stats) any { return x.c.Name }},
	{status.Column{Key: "state", Title: "State"}, func(x *Exchange, _ *Stats) any { return x.state() }},
	{status.Column{Key: "rank", Title: "This process's number"}, func(x *Exchange, _ *Stats) any { return x.c.Rank }},
	{status.Column{Key: "size", Title: "Takes part", Unit: "processes"}, func(x *Exchange, _ *Stats) any { return x.c.Size }},
	{status.Column{Key: "threads", Title: "Of this process", Unit: "threads"}, func(x *Exchange, _ *Stats) any { return x.c.Threads }},
	{status.Column{Key: "mode", Title: "Mode that was asked for"}, func(x *Exchange, _ *Stats) any { return x.c.Mode.String() }},
	{status.Column{Key: "sent_records", Title: "Sent", Unit: "records"}, func(_ *Exchange, s *Stats) any { return s.Sent.Records }},
	{status.Column{Key: "sent_bytes", Title: "Sent", Unit: status.Bytes}, func(_ *Exchange, s *Stats) any { return s.Sent.Bytes }},
	{status.Column{Key: "sent_parts", Title: "Sent", Unit: "parts"}, func(_ *Exchange, s *Stats) any { return s.Sent.Parts }},
	{status.Column{Key: "sent_local_bytes", Title: "Of it to this process", Unit: status.Bytes}, func(_ *Exchange, s *Stats) any { return s.Local.Bytes }},
	{status.Column{Key: "received_records", Title: "Received", Unit: "records"}, func(_ *Exchange, s *Stats) any { return s.Received.Records }},
	{status.Column{Key: "received_bytes", Title: "Received", Unit: status.Bytes}, func(_ *Exchange, s *Stats) any { return s.Received.Bytes }},
	{status.Column{Key: "messages", Title: "To other processes", Unit: "messages"}, func(_ *Exchange, s *Stats) any { return s.Messages }},
	{status.Column{Key: "sender_stalls", Title: "Senders waited for room", Unit: "times"}, func(_ *Exchange, s *Stats) any { return s.Stalls }},
	{status.Column{Key: "sender_stalled_seconds", Title: "Senders waited, all together"}, func(_ *Exchange, s *Stats) any { return s.Stalled }},
	{status.Column{Key: "receiver_waits", Title: "Receivers waited for records", Unit: "times"}, func(_ *Exchange, s *Stats) any { return s.Waits }},
	{status.Column{Key: "receiver_waited_seconds", Title: "Receivers waited, all together"}, func(_ *Exchange, s *Stats) any { return s.Waited }},
	{status.Column{Key: "spilt_bytes", Title: "Spilt to the disk", Unit: status.Bytes}, func(_ *Exchange, s *Stats) any { return s.Spilt }},
	{status.Column{Key: "memory_bytes", Title: "Memory for records on their way", Unit: status.Bytes}, func(_ *Exchange, s *Stats) any { return s.Memory }},
	{status.Column{Key: "registered_bytes", Title: "Of it registered", Unit: status.Bytes}, func(_ *Exchange, s *Stats) any { return s.Registered }},
	{status.Column{Key: "part_bytes", Title: "A part", Unit: status.Bytes}, func(_ *Exchange, s *Stats) any { return s.Part }},
	{status.Column{Key: "slab_bytes", Title: "A peer's slab", Unit: status.Bytes}, func(_ *Exchange, s *Stats) any { return s.Slab }},
}

// Status implements [status.Source].
func (all exchangesStatus) Status() status.Section {
	t := status.Table{Name: "exchanges", Title: "Exchanges", Empty: "There is none."}
	for i := range figures {
		t.Columns = append(t.Columns, figures[i].Column)
	}
	ways := status.Table{Name: "ways", Title: "How blocks go to other processes", Empty: "No other process has been met.", Columns: []status.Column{
		{Key: "exchange", Title: "Exchange"}, {Key: "transport", Title: "Transport"}, {Key: "mode", Title: "Mode"}, {Key: "why", Title: "Why"}, {Key: "peers", Title: "Peers", Unit: "processes"},
	}}
	for _, x := range all {
		s := x.Stats()
		row := make([]any, len(figures))
		for i := range figures {
			row[i] = figures[i].of(x, &s)
		}
		t.Rows = append(t.Rows, row)
		for _, w := range s.Ways {
			ways.Rows = append(ways.Rows, []any{x.c.Name, w.Transport, w.Mode.String(), w.Why, w.Peers})
		}
	}
	return status.Section{Name: "shuffle", Title: "Shuffle", Tables: []status.Table{t, ways}}
}

// state tells what has become of the exchange.
func (x *Exchange) state() string {
	select {
	case <-x.over:
		return "finished: every record was received"
	case <-x.failed:
		return x.err.Error()
	default:
		return "at work"
	}
}
