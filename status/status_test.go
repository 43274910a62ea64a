package status

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestText(t *testing.T) {
	for _, test := range []struct {
		unit                string
		value               any
		line, exact, suffix string
	}{
		{"", nil, "–", "", ""},
		{"", true, "yes", "", ""},
		{"", "a<b>", "a<b>", "", ""},
		{"", 12345, "12345", "", ""},
		{"messages", 0, "0", "", "messages"},
		{"messages", uint64(999), "999", "", "messages"},
		{"messages", int64(-1000), "-1,000", "", "messages"},
		{"messages", uint64(math.MaxUint64), "9,223,372,036,854,775,807", "", "messages"},
		{Bytes, 1023, "1023 B", "", ""},
		{Bytes, 1024, "1.00 KiB", "1,024 bytes", ""},
		{Bytes, 1023 << 10, "1.00 MiB", "1,047,552 bytes", ""},
		{Bytes, uint64(12345678), "11.8 MiB", "12,345,678 bytes", ""},
		{Bytes, int64(math.MaxInt64), "8.0 EiB", "9,223,372,036,854,775,807 bytes", ""},
		{"", 1234567890 * time.Nanosecond, "1.23s", "", ""},
		{"", 3*time.Hour + 100*time.Millisecond, "3h0m0s", "", ""},
		{"", 12345678 * time.Nanosecond, "12.35ms", "", ""},
		{"", 70 * time.Nanosecond, "70ns", "", ""},
		{"", time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), "2026-01-02 03:04:05 UTC", "", ""},
		{"", errors.New("two\nlines"), "two lines", "", ""},
		{"", time.March, "March", "", ""}, // has words of its own
		{"", "turned \u202e round \x1b[2J \xff", "turned \ufffd round \ufffd[2J \ufffd", "", ""},
	} {
		c := Column{Unit: test.unit}
		if got := c.Lines(test.value); len(got) != 1 || got[0] != test.line || c.Exact(test.value) != test.exact || c.Suffix(test.value) != test.suffix {
			t.Errorf("%v: %q, %q, %q, want %q, %q, %q", test.value, got, c.Exact(test.value), c.Suffix(test.value), test.line, test.exact, test.suffix)
		}
	}
	if got := (Column{}).Lines([]string{"a", "b\u200f"}); !slices.Equal(got, []string{"a", "b\ufffd"}) {
		t.Errorf("%q", got)
	}
}

func TestJSON(t *testing.T) {
	s := Section{
		Name: "s", Note: "odd", Facts: []Fact{{Column{Key: "up_seconds"}, 1500 * time.Millisecond}, {Column{Key: "why"}, errors.New("gone")}},
		Tables: []Table{
			{Name: "rows", Columns: []Column{{Key: "sent_bytes"}, {Key: "left"}}, Rows: [][]any{{uint64(7), []string(nil)}, {nil, []string{"x"}}}},
			{Name: "none"},
		},
	}
	const want = `{"none":[],"note":"odd","rows":[{"left":[],"sent_bytes":7},{"left":["x"],"sent_bytes":null}],"up_seconds":1.5,"why":"gone"}`
	if got, err := json.Marshal(s); err != nil || string(got) != want {
		t.Errorf("%s, %v\nwant %s", got, err, want)
	}
	twice, short := s, s
	twice.Facts = append(slices.Clone(s.Facts), Fact{Column{Key: "rows"}, 1})
	short.Tables = []Table{{Name: "rows", Columns: s.Tables[0].Columns, Rows: [][]any{{1}}}}
	for want, wrong := range map[string]Section{`has "rows" twice`: twice, "2 columns, and a row of 1": short} {
		if _, err := json.Marshal(wrong); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
