// Package testnet gives tests a network that can be cut: two network namespaces
// joined by a cable (a veth pair), or several by a bridge. It needs Linux, the superuser's rights and
// iproute2. Production code must not import it.
package testnet
