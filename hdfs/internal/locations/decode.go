package locations

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

const (
	// known is how many DataNodes are remembered, to be compared with those of the next blocks.
	known = 16
	// together is for how many blocks at most memory is allocated at once.
	together = 16
)

// A decoder decodes what HDFS's NameNodes send. Its methods return false for all else: for what
// is malformed, for fields that come twice, and for those that are rare.
type decoder struct {
	text  string // the answer
	bytes []byte // the same, to which messages refer

	nodes [known]knownNode
	seen  int // of nodes
}

type knownNode struct {
	told span
	info *hdfspb.DatanodeInfoProto
}

// A span is a part of the answer.
type span struct{ from, to int }

func (d *decoder) textOf(s span) string  { return d.text[s.from:s.to] }
func (d *decoder) bytesOf(s span) []byte { return d.bytes[s.from:s.to:s.to] }

// A field is one field of a message.
type field struct {
	number protowire.Number
	kind   protowire.Type
	value  uint64 // of a varint
	body   span   // of bytes
}

// next takes the first field off s, which is not empty.
func (d *decoder) next(s *span) (f field, ok bool) {
	b := d.bytes[s.from:s.to]
	var n, m int
	if f.number, f.kind, n = protowire.ConsumeTag(b); n < 0 {
		return f, false
	}
	switch b = b[n:]; f.kind {
	case protowire.VarintType:
		f.value, m = protowire.ConsumeVarint(b)
	case protowire.BytesType:
		var body []byte
		body, m = protowire.ConsumeBytes(b)
		f.body.to = s.from + n + m
		f.body.from = f.body.to - len(body)
	default:
		return f, false
	}
	s.from += n + m
	return f, m >= 0
}

// each gives the fields of a message to take, until that returns false.
func (d *decoder) each(s span, take func(f field) bool) bool {
	for s.from < s.to {
		f, ok := d.next(&s)
		if !ok || !take(f) {
			return false
		}
	}
	return true
}

// place sets a field that has not come before, in its memory.
func place[T any](field **T, memory *T, v T) bool {
	if *field != nil {
		return false
	}
	*field, *memory = memory, v
	return true
}

func (d *decoder) answer(r *Blocks) bool {
	all := span{0, len(d.bytes)}
	if all.to == 0 {
		return false
	}
	f, ok := d.next(&all)
	if !ok || f.number != 1 || f.kind != protowire.BytesType || all.from < all.to {
		return false
	}
	blocks, ok := d.count(f.body)
	if !ok {
		return false
	}
	p := &r.locations
	switch {
	case blocks == 1:
		p.Blocks = r.list[:0]
	case blocks > 1:
		p.Blocks = make([]*hdfspb.LocatedBlockProto, 0, blocks)
	}
	var memory []block
	var last span // the block before
	ok = d.each(f.body, func(f field) bool {
		ok := true
		switch {
		case f.kind == protowire.VarintType:
			switch f.number {
			case 1:
				ok = place(&p.FileLength, &r.length, f.value)
			case 3:
				ok = place(&p.UnderConstruction, &r.open, f.value != 0)
			case 5:
				ok = place(&p.IsLastBlockComplete, &r.complete, f.value != 0)
			default:
				ok = false
			}
		case f.number == 2:
			b := &r.first
			if len(p.Blocks) > 0 {
				if len(memory) == 0 {
					memory = make([]block, min(together, blocks-len(p.Blocks)))
				}
				b, memory = &memory[0], memory[1:]
			}
			ok = d.block(f.body, b)
			p.Blocks, last = append(p.Blocks, &b.proto), f.body
		case f.number == 4 && p.LastBlock == nil:
			if n := len(p.Blocks); n > 0 && d.textOf(f.body) == d.textOf(last) {
				p.LastBlock = p.Blocks[n-1]
				break
			}
			b := new(block)
			ok = d.block(f.body, b)
			p.LastBlock = &b.proto
		default:
			ok = false
		}
		return ok
	})
	r.Locations = p
	return ok && p.FileLength != nil && p.UnderConstruction != nil && p.IsLastBlockComplete != nil
}

// count counts the blocks of a file, but for the last one if that comes by itself.
func (d *decoder) count(s span) (n int, ok bool) {
	ok = d.each(s, func(f field) bool {
		if f.number == 2 && f.kind == protowire.BytesType {
			n++
		}
		return true
	})
	return n, ok
}

func (d *decoder) block(s span, b *block) bool {
	p := &b.proto
	ok := d.each(s, func(f field) bool {
		ok := true
		if f.kind == protowire.VarintType {
			switch f.number {
			case 2:
				ok = place(&p.Offset, &b.offset, f.value)
			case 4:
				ok = place(&p.Corrupt, &b.corrupt, f.value != 0)
			case 7:
				if p.StorageTypes == nil {
					p.StorageTypes = b.types[:0]
				}
				p.StorageTypes = append(p.StorageTypes, hdfspb.StorageTypeProto(f.value))
			default:
				ok = false
			}
		} else {
			switch f.number {
			case 1:
				ok = p.B == nil && d.extended(f.body, b)
				p.B = &b.extended
			case 3:
				var n *hdfspb.DatanodeInfoProto
				if n, ok = d.node(f.body); !ok {
					return false
				}
				if p.Locs == nil {
					p.Locs = b.nodes[:0]
				}
				p.Locs = append(p.Locs, n)
			case 5:
				ok = p.BlockToken == nil && d.token(f.body, b)
				p.BlockToken = &b.token
			case 6:
				if p.IsCached == nil {
					p.IsCached = b.cached[:0]
				}
				for bools := d.bytesOf(f.body); len(bools) > 0 && ok; {
					v, n := protowire.ConsumeVarint(bools)
					if ok = n >= 0; ok {
						p.IsCached, bools = append(p.IsCached, v != 0), bools[n:]
					}
				}
			case 8:
				if p.StorageIDs == nil {
					p.StorageIDs = b.ids[:0]
				}
				p.StorageIDs = append(p.StorageIDs, d.textOf(f.body))
			default:
				ok = false
			}
		}
		return ok
	})
	return ok && p.B != nil && p.Offset != nil && p.Corrupt != nil && p.BlockToken != nil
}

func (d *decoder) extended(s span, b *block) bool {
	p := &b.extended
	ok := d.each(s, func(f field) bool {
		var ok bool
		bytes := f.kind == protowire.BytesType
		switch {
		case bytes && f.number == 1:
			ok = place(&p.PoolId, &b.pool, d.textOf(f.body))
		case !bytes && f.number == 2:
			ok = place(&p.BlockId, &b.id, f.value)
		case !bytes && f.number == 3:
			ok = place(&p.GenerationStamp, &b.generation, f.value)
		case !bytes && f.number == 4:
			ok = place(&p.NumBytes, &b.length, f.value)
		default:
			ok = false
		}
		return ok
	})
	return ok && p.PoolId != nil && p.BlockId != nil && p.GenerationStamp != nil
}

func (d *decoder) token(s span, b *block) bool {
	p := &b.token
	ok := d.each(s, func(f field) bool {
		ok := f.kind == protowire.BytesType
		switch {
		case !ok:
		case f.number == 1 && p.Identifier == nil:
			p.Identifier = d.bytesOf(f.body)
		case f.number == 2 && p.Password == nil:
			p.Password = d.bytesOf(f.body)
		case f.number == 3:
			ok = place(&p.Kind, &b.kind, d.textOf(f.body))
		case f.number == 4:
			ok = place(&p.Service, &b.service, d.textOf(f.body))
		default:
			ok = false
		}
		return ok
	})
	return ok && p.Identifier != nil && p.Password != nil && p.Kind != nil && p.Service != nil
}

// node decodes a DataNode, or finds it among those before.
func (d *decoder) node(s span) (*hdfspb.DatanodeInfoProto, bool) {
	for _, k := range d.nodes[:min(d.seen, known)] {
		if d.textOf(k.told) == d.textOf(s) {
			return k.info, true
		}
	}
	n := new(node)
	if !d.info(s, n) {
		return nil, false
	}
	d.nodes[d.seen%known] = knownNode{s, &n.proto}
	d.seen++
	return &n.proto, true
}

func (d *decoder) info(s span, n *node) bool {
	p := &n.proto
	ok := d.each(s, func(f field) bool {
		var ok bool
		if f.kind == protowire.VarintType {
			ok = n.set(f.number, f.value)
		} else {
			switch f.number {
			case 1:
				ok = p.Id == nil && d.id(f.body, n)
				p.Id = &n.id
			case 8:
				ok = place(&p.Location, &n.rack, d.textOf(f.body))
			case 14:
				ok = place(&p.UpgradeDomain, &n.domain, d.textOf(f.body))
			default:
				ok = false
			}
		}
		return ok
	})
	return ok && p.Id != nil
}

// set sets a number of a DataNode.
func (n *node) set(number protowire.Number, v uint64) bool {
	p := &n.proto
	switch number {
	case 2:
		return place(&p.Capacity, &n.capacity, v)
	case 3:
		return place(&p.DfsUsed, &n.used, v)
	case 4:
		return place(&p.Remaining, &n.remaining, v)
	case 5:
		return place(&p.BlockPoolUsed, &n.poolUsed, v)
	case 6:
		return place(&p.LastUpdate, &n.updated, v)
	case 7:
		return place(&p.XceiverCount, &n.transfers, uint32(v))
	case 9:
		return place(&p.NonDfsUsed, &n.others, v)
	case 10:
		return place(&p.AdminState, &n.state, hdfspb.DatanodeInfoProto_AdminState(v))
	case 11:
		return place(&p.CacheCapacity, &n.cacheCapacity, v)
	case 12:
		return place(&p.CacheUsed, &n.cacheUsed, v)
	case 13:
		return place(&p.LastUpdateMonotonic, &n.updatedClock, v)
	case 15:
		return place(&p.LastBlockReportTime, &n.report, v)
	case 16:
		return place(&p.LastBlockReportMonotonic, &n.reportClock, v)
	case 17:
		return place(&p.NumBlocks, &n.blocks, uint32(v))
	}
	return false
}

func (d *decoder) id(s span, n *node) bool {
	p := &n.id
	ok := d.each(s, func(f field) bool {
		var ok bool
		bytes := f.kind == protowire.BytesType
		switch {
		case bytes && f.number == 1:
			ok = place(&p.IpAddr, &n.ip, d.textOf(f.body))
		case bytes && f.number == 2:
			ok = place(&p.HostName, &n.name, d.textOf(f.body))
		case bytes && f.number == 3:
			ok = place(&p.DatanodeUuid, &n.uuid, d.textOf(f.body))
		case !bytes && f.number == 4:
			ok = place(&p.XferPort, &n.port, uint32(f.value))
		case !bytes && f.number == 5:
			ok = place(&p.InfoPort, &n.infoPort, uint32(f.value))
		case !bytes && f.number == 6:
			ok = place(&p.IpcPort, &n.ipcPort, uint32(f.value))
		case !bytes && f.number == 7:
			ok = place(&p.InfoSecurePort, &n.infoSecurePort, uint32(f.value))
		default:
			ok = false
		}
		return ok
	})
	return ok && p.IpAddr != nil && p.HostName != nil && p.DatanodeUuid != nil && p.XferPort != nil && p.InfoPort != nil && p.IpcPort != nil
}
