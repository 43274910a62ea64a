package wire

// Features is what an end of this implementation announces to another.
type Features uint8

// FeatureExtensions has the operations of RFC 7306.
const FeatureExtensions Features = 1 << 0

// The announcement is a Write of no data. Its tag and offset name nothing, and
// nobody looks at them: a Write that touches nothing is not checked (RFC 5040
// section 5.1, RFC 5041 section 5.1). So it means something to this
// implementation alone and harms no other.
const (
	announceSTag   = 0x52464337         // "RFC7"
	announceOffset = 0x56455242454E4100 // "VERBENA", then the features
)

// Announcement makes the header of the FPDU that announces features.
func Announcement(f Features) Segment {
	return Segment{Tagged: true, Last: true, Opcode: OpWrite, STag: announceSTag, Offset: announceOffset | uint64(f)}
}

// ParseAnnouncement tells whether a segment with length bytes of payload is an
// announcement, and of what. Features that are not known are dropped.
func ParseAnnouncement(s *Segment, length int) (Features, bool) {
	if length != 0 || !s.Tagged || !s.Last || s.Opcode != OpWrite || s.STag != announceSTag || s.Offset&^0xFF != announceOffset {
		return 0, false
	}
	return Features(s.Offset) & FeatureExtensions, true
}
