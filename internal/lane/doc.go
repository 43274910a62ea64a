// Package lane keeps the connections to one peer that requests share: it hands a
// request a free one, makes a new one when none is free, up to a bound, lets requests
// wait in order beyond it, and closes what is idle. It knows neither peers nor
// transports: a connection is anything that tells when it has ended.
//
// One attempt to connect is under way at a time, for all who wait. After a failure,
// and after the peer has ended a connection, the next attempt has to wait for a pause
// that grows with each failure in a row.
package lane
