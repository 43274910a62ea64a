package wire

import "encoding/binary"

// AppendOldFatal appends the answer that ends the connection of a client of an older
// version, as that reads it: integers and strings of Java's, without a length in
// front. It returns nil for versions that read what Version does, or nothing known.
func AppendOldFatal(b []byte, version byte, class, message string) []byte {
	const fatalStatus = 0xffffffff // -1
	switch {
	case version == 2:
		b = binary.BigEndian.AppendUint32(b, 0) // call
		b = append(b, 1)                        // it has failed
	case version >= 3 && version < Version:
		none := int32(CallIDNone)
		b = binary.BigEndian.AppendUint32(b, uint32(none))
		b = binary.BigEndian.AppendUint32(b, fatalStatus)
	default:
		return nil
	}
	for _, s := range []string{class, message} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	return b
}
