// Package foreign speaks the protocols of other people's RDMA programs on the
// verbs model: both sides of rdma-core's rping, and the server of perftest's
// ib_send_lat and ib_write_lat (-R). With it a provider is tested against
// programs that know nothing of it.
package foreign
