package perf

// A layout tells where the parts of each connection lie in the one region of
// an end. Both ends compute the same.
type layout struct {
	stride     int // between two buffers
	source     int // offset of what is sent
	sources    int
	receive    int // of where receives and Reads go
	buffers    int
	target     int // of what the peer writes, reads or adds to
	targets    int
	connection int // bytes of a connection
}

const (
	line = 64
	page = 4096
)

func newLayout(p *Plan) layout {
	l := layout{stride: align(p.Size+7, line), buffers: p.Buffers, sources: 1, targets: 1}
	if p.Size >= page {
		l.stride = align(p.Size+7, page)
		if p.Size%page == 0 {
			l.stride = p.Size
		}
	}
	if p.Size < page && p.Size%line == 0 {
		l.stride = p.Size
	}
	if p.Verify {
		// A message that is on its way must not change: each has a place of its own.
		l.sources, l.targets = p.Window+1, p.Window
	}
	l.receive = l.source + l.sources*l.stride
	l.target = l.receive + l.buffers*l.stride
	l.connection = align(l.target+l.targets*l.stride, line)
	if p.Size >= page {
		l.connection = align(l.connection, page)
	}
	return l
}

func align(n, to int) int { return (n + to - 1) / to * to }
