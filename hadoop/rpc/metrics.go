package rpc

import "github.com/prometheus/client_golang/prometheus"

// metrics are a server's numbers. Those of a method are looked up when it is
// registered, never during a call.
type metrics struct {
	connections prometheus.Gauge
	refused     prometheus.Counter
	waiting     prometheus.GaugeFunc
	outside     prometheus.GaugeFunc
	busy        prometheus.Counter
	dropped     prometheus.Counter
	repeated    prometheus.Counter
	running     *prometheus.GaugeVec
	failed      *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
}

// served is a registered method with its numbers.
type served struct {
	Method
	class, name string
	version     uint64 // of the protocol
	running     prometheus.Gauge
	failed      prometheus.Counter
	seconds     prometheus.Observer
}

func newMetrics(s *Server) metrics {
	labels := []string{"protocol", "method"}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "verbena_hadoop_rpc_" + name, Help: help})
	}
	return metrics{
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "verbena_hadoop_rpc_connections", Help: "Connections open now.",
		}),
		refused: counter("connections_refused_total", "Connections closed because there were too many."),
		waiting: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "verbena_hadoop_rpc_calls_waiting", Help: "Calls that wait for a handler now.",
		}, func() float64 { return float64(s.queue.Len()) }),
		outside: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "verbena_hadoop_rpc_calls_outside", Help: "Calls that wait for room in the full queue now, each with its connection.",
		}, func() float64 { return float64(s.queue.Waiting()) }),
		busy:     counter("calls_refused_total", "Calls answered with RetriableException because too many waited."),
		dropped:  counter("calls_dropped_total", "Calls not run because their client had gone."),
		repeated: counter("calls_repeated_total", "Calls answered with the answer of an earlier run."),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "verbena_hadoop_rpc_calls_running", Help: "Calls being served now.",
		}, labels),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "verbena_hadoop_rpc_call_errors_total", Help: "Calls answered with an exception.",
		}, labels),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "verbena_hadoop_rpc_call_seconds", Help: "Time in the method, without reading and sending.",
			Buckets: prometheus.ExponentialBuckets(10e-6, 4, 10),
		}, labels),
	}
}

func (m *metrics) serve(class, name string, version uint64, method Method) *served {
	return &served{
		Method: method, class: class, name: name, version: version,
		running: m.running.WithLabelValues(class, name),
		failed:  m.failed.WithLabelValues(class, name),
		seconds: m.seconds.WithLabelValues(class, name),
	}
}

// Describe implements [prometheus.Collector].
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s.metrics.all() {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector]: connections, calls running,
// waiting, waiting outside a full queue, refused, dropped and repeated, and errors and time by method.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s.metrics.all() {
		c.Collect(ch)
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.connections, m.refused, m.waiting, m.outside, m.busy, m.dropped, m.repeated, m.running, m.failed, m.seconds}
}
