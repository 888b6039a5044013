package queue

import (
	"encoding/binary"
	"time"

	"github.com/google/uuid"
)

// A run's token is the key of the batch that its claim made, and its place there
// as a big-endian number (docs/sql-protocol.md, claim_many and
// succeed_many).
const batchKeyBytes = 14

type batchKey [batchKeyBytes]byte

func splitToken(token uuid.UUID) (key batchKey, slot int) {
	return batchKey(token[:batchKeyBytes]), int(binary.BigEndian.Uint16(token[batchKeyBytes:]))
}

func joinToken(key batchKey, slot int) (token uuid.UUID) {
	copy(token[:], key[:])
	binary.BigEndian.PutUint16(token[batchKeyBytes:], uint16(slot))
	return token
}

// batchRuns are runs of one batch, as succeed_many takes them.
type batchRuns struct {
	key   batchKey
	bits  []byte  // '1' at the places of the runs
	ids   []int64 // by place
	idXor int64   // by which the database notices an id that is not its token's
	took  time.Duration
}

// byBatch gathers runs by batch, in order of first appearance, and how long they took,
// if that is known. A run named twice counts once.
func byBatch(refs []Ref, took []time.Duration) []*batchRuns {
	var all []*batchRuns
	byKey := map[batchKey]*batchRuns{}
	var b *batchRuns
	for i, ref := range refs {
		key, slot := splitToken(ref.Token)
		if b == nil || b.key != key {
			if b = byKey[key]; b == nil {
				b = &batchRuns{key: key}
				byKey[key] = b
				all = append(all, b)
			}
		}
		for len(b.bits) <= slot {
			b.bits = append(b.bits, '0')
			b.ids = append(b.ids, 0)
		}
		if b.bits[slot] == '0' {
			b.bits[slot], b.ids[slot] = '1', ref.ID
			b.idXor ^= ref.ID
			if took != nil {
				b.took += took[i]
			}
		}
	}
	return all
}

// named appends the ids at the places that are set in bits.
func (b *batchRuns) named(bits string, ids []int64) []int64 {
	for slot, id := range b.ids {
		if slot < len(bits) && bits[slot] == '1' {
			ids = append(ids, id)
		}
	}
	return ids
}
