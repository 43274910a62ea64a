// Package domains is the bookkeeping that the domains of all providers do alike:
// checking configurations against a device's limits, the sets of a domain's objects
// with who uses what and the order in which they are closed, the delivery of
// asynchronous events, and the numbers of queue pairs.
//
// Providers import it; it imports package rdma alone.
package domains
