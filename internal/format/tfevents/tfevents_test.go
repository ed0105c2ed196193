package tfevents

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"os"
	"path/filepath"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/format"
)

func read(t require.TestingT, path string) (list []Event, cut bool, err error) {
	cut, err = Read(path, func(e Event) error { list = append(list, e); return nil })
	return list, cut, err
}

// The length of 24 bytes, the first in most event files of the world, has the checksum a3 7f 4b 22.
func TestRecord(t *testing.T) {
	b := Append(nil, Event{WallTime: 1.5e9, Version: Version})
	require.Equal(t, "1800000000000000a37f4b22", hex.EncodeToString(b[:12]))
	require.Equal(t, "09"+hex.EncodeToString(binary.LittleEndian.AppendUint64(nil, math.Float64bits(1.5e9)))+"1a0d"+hex.EncodeToString([]byte(Version)), hex.EncodeToString(b[12:36]))
	require.Len(t, b, 40)
}

// testdata holds what tensorboard 2.20.0 wrote (golden/gen/tfevents.py).
func TestTensorBoard(t *testing.T) {
	list, cut, err := read(t, "testdata/tensorboard.tfevents")
	require.NoError(t, err)
	require.False(t, cut)
	require.Equal(t, Version, list[0].Version)
	require.Equal(t, []Scalar{{"loss/policy", 0.25}}, list[1].Scalars)
	require.Equal(t, int64(3), list[2].Step)
	require.Equal(t, []Scalar{{"float_val", float64(float32(-1.1))}, {"content", 0.5}, {"double", 0.1}}, list[2].Scalars, "an image and a vector are no scalars")
	require.True(t, math.IsNaN(list[3].Scalars[0].Value))
	require.True(t, math.IsInf(list[3].Scalars[1].Value, -1))
	require.True(t, list[4].Start)
	require.Len(t, list, 5)
}

func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Event {
			e := Event{WallTime: rapid.Float64Range(0, 2e9).Draw(t, "wall"), Step: rapid.Int64().Draw(t, "step"), Version: rapid.String().Draw(t, "version"), Start: rapid.Bool().Draw(t, "start")}
			for range rapid.IntRange(0, 3).Draw(t, "scalars") {
				e.Scalars = append(e.Scalars, Scalar{rapid.String().Draw(t, "tag"), float64(rapid.Float32().Draw(t, "value"))})
			}
			return e
		}), 1, 5).Draw(t, "events")
		var b []byte
		var ends []int
		for _, e := range want {
			b = Append(b, e)
			ends = append(ends, len(b))
		}
		path := filepath.Join(dir, "f")
		keep := rapid.IntRange(0, len(b)).Draw(t, "keep")
		require.NoError(t, os.WriteFile(path, b[:keep], 0o644))
		got, cut, err := read(t, path)
		require.NoError(t, err)
		whole := 0
		for _, end := range ends {
			if end <= keep {
				whole++
			}
		}
		require.Equal(t, whole, len(got))
		require.Equal(t, want[:whole], append([]Event{}, got...))
		require.Equal(t, keep != 0 && (whole == 0 || ends[whole-1] != keep), cut)

		at := rapid.IntRange(0, len(b)-1).Draw(t, "flip")
		b[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		require.NoError(t, os.WriteFile(path, b, 0o644))
		_, _, err = read(t, path)
		require.True(t, format.IsMalformed(err), "a flipped bit at %d: %v", at, err)
	})
}

func TestWriter(t *testing.T) {
	dir := t.TempDir()
	clock := time.Unix(1_700_000_000, 500_000_000)
	for start := range 2 {
		w, err := Create(dir, 10*start, func() time.Time { return clock })
		require.NoError(t, err)
		require.NoError(t, w.Add(10*start+1, []Scalar{{"reward", 0.5}}))
		require.NoError(t, w.Close())
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(dir, "events.out.tfevents.1700000000.000.plumbline"), filepath.Join(dir, "events.out.tfevents.1700000000.001.plumbline")}, files)
	list, cut, err := read(t, files[1])
	require.NoError(t, err)
	require.False(t, cut)
	require.Equal(t, []Event{{WallTime: 1700000000.5, Version: Version}, {WallTime: 1700000000.5, Step: 10, Start: true},
		{WallTime: 1700000000.5, Step: 11, Scalars: []Scalar{{"reward", 0.5}}}}, list)
}

func TestRefused(t *testing.T) {
	for name, payload := range map[string][]byte{
		"field 0":         {0, 0},
		"a group":         {1<<3 | 3},
		"a varint ends":   {eventStep<<3 | wireVarint, 0x80},
		"a double ends":   {eventWallTime<<3 | wire64, 1, 2},
		"a float ends":    {9<<3 | wire32, 1},
		"a message ends":  {eventSummary<<3 | wireBytes, 5, 1},
		"a huge message":  {eventSummary<<3 | wireBytes, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
		"a tag not UTF-8": appendBytes(nil, eventSummary, appendBytes(nil, summaryValue, appendBytes(nil, valueTag, []byte{0xff}))),
		"in a tensor":     appendBytes(nil, eventSummary, appendBytes(nil, summaryValue, appendBytes(nil, valueTensor, []byte{0, 0}))),
	} {
		path := filepath.Join(t.TempDir(), "f")
		require.NoError(t, os.WriteFile(path, record(payload), 0o644))
		_, _, err := read(t, path)
		require.True(t, format.IsMalformed(err), name)
		require.ErrorContains(t, err, path+": record 0 at byte 0")
	}
	_, _, err := read(t, filepath.Join(t.TempDir(), "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func FuzzRead(f *testing.F) {
	golden, err := os.ReadFile("testdata/tensorboard.tfevents")
	require.NoError(f, err)
	f.Add(golden)
	f.Add(Append(nil, Event{Step: 1, Scalars: []Scalar{{"a", math.NaN()}}}))
	f.Add(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, 1<<40), mask(binary.LittleEndian.AppendUint64(nil, 1<<40))))
	path := filepath.Join(f.TempDir(), "f")
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, file := range [][]byte{data, record(data)} { // whose checksums a fuzzer cannot guess
			require.NoError(t, os.WriteFile(path, file, 0o644))
			_, _, err := read(t, path)
			require.True(t, err == nil || format.IsMalformed(err), "%v", err)
		}
		if e, err := decode(data); err == nil {
			again, err := decode(e.encode())
			require.NoError(t, err)
			require.Equal(t, len(e.Scalars), len(again.Scalars))
		}
	})
}

// TestHostile reads files that are made to cost as much memory per byte as they can, and lengths that no record has.
func TestHostile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var small, many []byte
	for range 20_000 {
		small = Append(small, Event{})
	}
	value := appendBytes(nil, summaryValue, []byte{valueSimple<<3 | wire32, 0, 0, 128, 63})
	payload := appendBytes(nil, eventSummary, bytes.Repeat(value, 500_000))
	payload = append(payload, bytes.Repeat(appendBytes(nil, eventSummary, value), 100_000)...)
	many = record(payload)
	empty := record(appendBytes(nil, eventSummary, bytes.Repeat([]byte{summaryValue<<3 | wireBytes, 0}, 1<<20)))
	for name, c := range map[string]struct {
		file    []byte
		events  int
		scalars int
	}{"small events": {small, 20_000, 0}, "many scalars": {many, 1, 600_000}, "values without anything": {empty, 1, 0}} {
		require.NoError(t, os.WriteFile(path, c.file, 0o644))
		s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(s)
		before, events, scalars := s[0].Value.Uint64(), 0, 0
		_, err := Read(path, func(e Event) error { events, scalars = events+1, scalars+len(e.Scalars); return nil })
		metrics.Read(s)
		require.NoError(t, err, name)
		require.Less(t, s[0].Value.Uint64()-before, uint64(1<<20+9*len(c.file)/2), name)
		require.Equal(t, []int{c.events, c.scalars}, []int{events, scalars}, name)
	}
	for _, length := range []uint64{1 << 31, 1 << 40, 1 << 63, 1<<64 - 1} {
		head := binary.LittleEndian.AppendUint64(nil, length)
		file := append(Append(nil, Event{Step: 1}), binary.LittleEndian.AppendUint32(head, mask(head))...)
		require.NoError(t, os.WriteFile(path, Append(file, Event{Step: 2}), 0o644)) // would be hidden
		_, cut, err := read(t, path)
		require.True(t, format.IsMalformed(err), "%d: %v", length, err)
		require.False(t, cut)
	}
}

// record is a record with any payload.
func record(payload []byte) []byte {
	head := binary.LittleEndian.AppendUint64(nil, uint64(len(payload)))
	b := binary.LittleEndian.AppendUint32(head, mask(head))
	return binary.LittleEndian.AppendUint32(append(b, payload...), mask(payload))
}
