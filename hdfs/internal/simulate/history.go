package simulate

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// history is what has happened, in order, for whoever has to find out why.
type history struct {
	began time.Time

	mu     sync.Mutex
	lines  []string
	counts map[string]int
}

func (h *history) count(what string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[what] += n
}

func (h *history) add(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprintf("%12.6f %s", time.Since(h.began).Seconds(), line))
}

func (h *history) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.lines, "\n")
}

// handler takes what a node logs.
func (h *history) handler(node string) slog.Handler { return &logHandler{h: h, node: node} }

type logHandler struct {
	h     *history
	node  string
	attrs string
}

func (l *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo
}

func (l *logHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "  %s: %s%s", l.node, r.Message, l.attrs)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		return true
	})
	l.h.add("%s", b.String())
	return nil
}

func (l *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *l
	for _, a := range attrs {
		next.attrs += fmt.Sprintf(" %s=%v", a.Key, a.Value)
	}
	return &next
}

func (l *logHandler) WithGroup(string) slog.Handler { return l }
