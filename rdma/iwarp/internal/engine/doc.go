// Package engine is iWARP without a network: the state of one queue pair's
// stream, from the MPA set-up to the last Terminate, as a machine that bytes and
// work requests go into and that says what to do.
//
// A shell moves the bytes. Its reader asks [Engine.Direct] where the next bytes
// of payload belong, reads them there (and what follows into a buffer of its
// own), and gives the rest to [Engine.Feed]. Its writer takes vectors from
// [Engine.Fill], writes them, and says so with [Engine.Written]. Work is posted
// by anybody. Completions go to the completion queues.
//
// One goroutine at a time reads and one at a time writes; the engine hands the
// writer's role out (the kick that some methods return) and takes it back when
// Fill has nothing more. It starts no goroutine, knows no socket and no clock.
//
// Payload is placed before its CRC has been seen, as the RFCs allow, but nothing
// is delivered, acted upon or completed before it passed. A segment whose header
// is refused goes nowhere, and the refusal waits for the CRC, too, so that a
// damaged header is reported as damage.
package engine
