// Package hello is how two Verbena processes find out about each other on a
// TCP port that they share with older protocols.
//
// A connection starts with a [Hello] of the dialling side, which the other
// side answers with an [Answer]. Both have the same frame: a magic that no
// protocol we share ports with can begin with, a length of at most [MaxSize],
// a range of versions, and type-length-values of which a receiver may ignore
// those it does not know, unless they are marked critical. docs/hello.md
// defines all of it, so that others can implement it.
//
// [Sniff] tells a hello from a legacy client's first bytes and gives those
// back unread.
//
// The package does no negotiation: what to offer and what to choose is the
// runtime's business.
package hello
