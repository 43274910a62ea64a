package rpc

import "github.com/prometheus/client_golang/prometheus"

// metrics are a server's numbers. Those of a method are looked up when it is
// registered, never during a call.
type metrics struct {
	connections prometheus.Gauge
	running     *prometheus.GaugeVec
	failed      *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
}

// served is a registered method with its numbers.
type served struct {
	Method
	running prometheus.Gauge
	failed  prometheus.Counter
	seconds prometheus.Observer
}

func newMetrics() metrics {
	labels := []string{"protocol", "method"}
	return metrics{
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "verbena_hadoop_rpc_connections", Help: "Connections open now.",
		}),
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

func (m *metrics) serve(class, name string, method Method) *served {
	return &served{
		Method:  method,
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

// Collect implements [prometheus.Collector]: connections, calls running, and
// errors and time by method.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s.metrics.all() {
		c.Collect(ch)
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.connections, m.running, m.failed, m.seconds}
}
