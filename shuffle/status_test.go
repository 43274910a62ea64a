package shuffle_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/shuffle"
)

// TestStatus has two processes exchange records, and what they tell of it says how many, and how
// they went: what has been sent has been received.
func TestStatus(t *testing.T) {
	exchanges := worlds[1].join(t, 2, shuffle.Config{Name: "told", Threads: 2})
	type figures struct {
		Exchange, State, Mode string
		Rank, Size, Threads   int
		SentRecords           uint64   `json:"sent_records"`
		SentBytes             uint64   `json:"sent_bytes"`
		ReceivedRecords       uint64   `json:"received_records"`
		ReceivedBytes         uint64   `json:"received_bytes"`
		Spilt                 *int     `json:"spilt_bytes"`
		Stalled               *float64 `json:"sender_stalled_seconds"`
		Memory                int64    `json:"memory_bytes"`
	}
	type way struct {
		Exchange, Transport, Mode, Why string
		Peers                          int
	}
	ask := func(of ...*shuffle.Exchange) (all struct {
		Exchanges []figures
		Ways      []way
	}) {
		t.Helper()
		b, err := json.Marshal(shuffle.NewStatus(of...).Status())
		if err == nil {
			err = json.Unmarshal(b, &all)
		}
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if x := ask(exchanges[1]).Exchanges[0]; x.State != "at work" || x.Exchange != "told" || x.Rank != 1 || x.Size != 2 || x.Threads != 2 || x.Mode != "auto" || x.SentRecords != 0 {
		t.Errorf("%+v", x)
	}
	const records = 50
	exchangeAll(t, exchanges, records, 100)
	for _, x := range exchanges {
		if err := x.Wait(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	all := ask(exchanges...)
	var sent, received uint64
	for rank, x := range all.Exchanges {
		s := exchanges[rank].Stats()
		if x.SentRecords != records*8 || x.SentBytes != s.Sent.Bytes || x.ReceivedBytes != s.Received.Bytes || x.Memory != s.Memory || x.Spilt == nil || x.Stalled == nil || !strings.HasPrefix(x.State, "finished") {
			t.Errorf("%+v, %+v", x, s)
		}
		sent, received = sent+x.SentRecords, received+x.ReceivedRecords
	}
	if len(all.Exchanges) != 2 || sent != received || len(all.Ways) != 2 {
		t.Errorf("%+v", all)
	}
	for _, w := range all.Ways {
		if w.Exchange != "told" || w.Transport != worlds[1].transport || w.Why == "" || w.Peers != 1 {
			t.Errorf("%+v", w)
		}
	}
	failed := worlds[1].join(t, 2, shuffle.Config{Name: "fails"})
	failed[0].Abort(context.Canceled)
	if x := ask(failed[0]).Exchanges[0]; !strings.Contains(x.State, "context canceled") {
		t.Errorf("%+v", x)
	}
}
