//go:build verbenadebug

package verbena

// checksBuffers tells whether the build looks for errors in the use of buffers: see
// buffer_debug.go.
const checksBuffers = true
