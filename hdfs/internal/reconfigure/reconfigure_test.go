package reconfigure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

func write(t *testing.T, file string, properties map[string]string) {
	t.Helper()
	text := "<configuration>"
	for name, value := range properties {
		text += fmt.Sprintf("<property><name>%s</name><value>%s</value></property>", name, value)
	}
	if err := os.WriteFile(file, []byte(text+"</configuration>"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What has changed in the files is taken, once; what can't be taken is told, and is tried again by the
// next start. Who may not hears nothing.
func TestReconfigure(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hdfs-site.xml")
	write(t, file, map[string]string{"a": "1", "b": "1", "other": "1"})
	p, err := conf.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	taken, denied := map[string][]string{}, error(nil)
	setting := func(name string) Setting {
		return Setting{Name: name, Take: func(p *conf.Properties) error {
			text, _ := p.String(name)
			if text == "bad" {
				return errors.New("no such value")
			}
			taken[name] = append(taken[name], text)
			return nil
		}}
	}
	s := New(Config{Settings: []Setting{setting("a"), setting("b"), setting("c")}, Properties: p, Logger: slog.New(slog.DiscardHandler), Allowed: func(context.Context) error { return denied }})
	status := func() string {
		t.Helper()
		resp, err := s.status(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		out := fmt.Sprint(resp.GetStartTime() > 0, resp.GetEndTime() > 0)
		for _, c := range resp.GetChanges() {
			out += fmt.Sprintf("; %s %q to %q", c.GetName(), c.GetOldValue(), c.GetNewValue())
			if c.NewValue == nil {
				out += " (default)"
			}
			if c.ErrorMessage != nil {
				out += ": " + c.GetErrorMessage()
			}
		}
		return out
	}
	if got := status(); got != "false false" {
		t.Error(got)
	}
	for _, step := range []struct {
		file  map[string]string
		want  string
		taken string
	}{
		{map[string]string{"a": "1", "b": "1", "other": "2"}, "true true", "map[]"},
		{map[string]string{"a": "2", "b": "bad", "c": "3"}, `true true; a "1" to "2"; b "1" to "bad": no such value; c "" to "3"`, "map[a:[2] c:[3]]"},
		{map[string]string{"a": "2", "b": "bad", "c": "3"}, `true true; b "1" to "bad": no such value`, "map[a:[2] c:[3]]"},
		{map[string]string{"a": "2", "b": "5"}, `true true; b "1" to "5"; c "3" to "" (default)`, "map[a:[2] b:[5] c:[3 ]]"},
	} {
		write(t, file, step.file)
		if _, err := s.start(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if got := status(); got != step.want {
			t.Errorf("%v: %s, want %s", step.file, got, step.want)
		}
		if got := fmt.Sprint(taken); got != step.taken {
			t.Errorf("%v: took %s, want %s", step.file, got, step.taken)
		}
	}
	if l, err := s.list(t.Context(), nil); err != nil || fmt.Sprint(l.GetName()) != "[a b c]" {
		t.Errorf("%v, %v", l, err)
	}
	if err := os.WriteFile(file, []byte("<"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.start(t.Context(), nil); err == nil {
		t.Error("a damaged file is read")
	}
	denied = errors.New("may not")
	for _, call := range []func() error{
		func() error { _, err := s.start(t.Context(), &hdfspb.StartReconfigurationRequestProto{}); return err },
		func() error { _, err := s.status(t.Context(), nil); return err },
		func() error { _, err := s.list(t.Context(), nil); return err },
	} {
		if err := call(); !errors.Is(err, denied) {
			t.Errorf("who may not got %v", err)
		}
	}
}
