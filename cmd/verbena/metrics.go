package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/metrics"
	"github.com/verbena-data/verbena/status"
	"github.com/verbena-data/verbena/status/page"
)

// metricsFlag is what the servers share.
func metricsFlag(flags *pflag.FlagSet, address *string) {
	flags.StringVar(address, "metrics", "", "serve Prometheus metrics at http://`HOST:PORT`/metrics, and a page for a browser at / of what runs and how (default: nowhere)")
}

// A metricsServer tells Prometheus the numbers of a process, and people at a page. The zero
// value, of a process without the flag, does nothing.
type metricsServer struct {
	address string
	server  *http.Server
	ended   chan error
}

// A told process is what a metricsServer tells of.
type told struct {
	command    string
	runtime    *verbena.Runtime // nil: it has none
	collectors []prometheus.Collector
	sources    []status.Source // of the page, beside the runtime
}

const (
	answering = 30 * time.Second // a client that reads nothing for so long has gone
	keeping   = 5 * time.Minute  // connections without a request; Prometheus asks every minute or more often
)

// serveMetrics starts to serve at address, if it is not empty.
func serveMetrics(ctx context.Context, address string, of told) (*metricsServer, error) {
	if address == "" {
		return &metricsServer{}, nil
	}
	registry := prometheus.NewRegistry()
	if of.runtime != nil {
		of.collectors = append(of.collectors, metrics.NewCollector(of.runtime))
	}
	for _, c := range append(of.collectors, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})) {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--metrics %s: %w", address, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { // by another method
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
	})
	mux.Handle("/", page.New(page.Config{Command: of.command, Version: version(), Runtime: of.runtime, Sources: of.sources}))
	m := &metricsServer{
		address: l.Addr().String(), ended: make(chan error, 1),
		server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: answering, IdleTimeout: keeping},
	}
	go func() { m.ended <- m.server.Serve(l) }()
	return m, nil
}

// tell says where the page and the metrics are.
func (m *metricsServer) tell(out io.Writer) {
	if m.server != nil {
		fmt.Fprintf(out, "Metrics at http://%s/metrics\n", m.address)
		fmt.Fprintf(out, "Status at http://%s/\n", m.address)
	}
}

// Close stops serving.
func (m *metricsServer) Close() error {
	if m.server == nil {
		return nil
	}
	err := m.server.Close()
	if ended := <-m.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
