package checkpoint

import (
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"

	"plumbline/internal/format"
)

// stats is what one pass over the elements of a tensor found.
type stats struct {
	bad    int     // NaN and infinities
	first  int     // index of the first of them
	value  string  // "NaN", "+Inf" or "-Inf": the first of them
	zero   bool    // every element is 0
	rowMax []uint8 // largest magnitude of each row of an int8 matrix
}

// piece is the bytes that a worker reads at a time: a multiple of every element size, small enough for the second-level
// cache, large enough that a system call per piece costs nothing.
const piece = 1 << 20

// masks describe an IEEE 754 format repeated over a word of 64 bits: the exponent bits, their lowest bit, and the signs.
// An element is NaN or infinite if and only if all its exponent bits are set, that is if adding the lowest exponent bit to
// the exponent bits carries into the sign.
type masks struct{ exponent, low, sign uint64 }

func lanes(exponent, low, sign uint64, width int) masks {
	var m masks
	for at := 0; at < 64; at += width {
		m.exponent |= exponent << at
		m.low |= low << at
		m.sign |= sign << at
	}
	return m
}

var floatMasks = map[format.DType]masks{
	format.F16:  lanes(0x7C00, 0x0400, 0x8000, 16),
	format.BF16: lanes(0x7F80, 0x0080, 0x8000, 16),
	format.F32:  lanes(0x7F800000, 0x00800000, 0x80000000, 32),
	format.F64:  lanes(0x7FF0000000000000, 0x0010000000000000, 0x8000000000000000, 64),
}

// look reports whether a NaN or infinity is among the elements in b, and whether one is not 0 (−0 is).
func look(b []byte, m masks) (bad, nonzero bool) {
	var carry, any uint64
	for len(b) >= 32 {
		w0, w1, w2, w3 := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
		carry |= (w0&m.exponent + m.low) | (w1&m.exponent + m.low) | (w2&m.exponent + m.low) | (w3&m.exponent + m.low)
		any |= w0 | w1 | w2 | w3
		b = b[32:]
	}
	for len(b) > 0 {
		var last [8]byte
		n := copy(last[:], b)
		w := binary.LittleEndian.Uint64(last[:])
		carry |= w&m.exponent + m.low
		any |= w
		b = b[n:]
	}
	return carry&m.sign != 0, any&^m.sign != 0
}

// count returns how many elements of b are not finite, the index of the first and what it is.
func count(b []byte, d format.DType) (n, first int, value string) {
	size := d.Size()
	x := make([]float64, 1)
	for i := 0; (i+1)*size <= len(b); i++ {
		format.Decode(x, b[i*size:], d, binary.LittleEndian)
		if v := x[0]; v-v != 0 {
			if n == 0 {
				first, value = i, fmt.Sprintf("%+g", v)
				if v != v {
					value = "NaN"
				}
			}
			n++
		}
	}
	return n, first, value
}

// job is a piece of a tensor.
type job struct {
	t        *Tensor
	from, to int64 // bytes inside the tensor
}

// jobs cuts tensors into pieces, in order.
func jobs(tensors []*Tensor) []job {
	var list []job
	for _, t := range tensors {
		n := t.bytes()
		for from := int64(0); from < n; from += piece {
			list = append(list, job{t, from, min(n, from+piece)})
		}
	}
	return list
}

// parallel calls work for every index below n from several goroutines, each with a buffer of its own, until one fails or
// the context ends. A panic in work is raised again here, for who called to recover from it.
func (in *Input) parallel(pass string, n, buffer int, work func(i int, buf []byte) error) error {
	threads := in.Threads
	if threads == 0 {
		threads = min(runtime.GOMAXPROCS(0), 8)
	}
	ctx := in.context()
	var (
		next   atomic.Int64
		failed error
		crash  any
		mu     sync.Mutex
		wg     sync.WaitGroup
	)
	stop := func(err error, p any) {
		mu.Lock()
		defer mu.Unlock()
		if failed == nil && crash == nil {
			failed, crash = err, p
		}
		next.Store(int64(n))
	}
	for range min(threads, n) {
		wg.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					stop(nil, p)
				}
			}()
			buf := make([]byte, buffer)
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := ctx.Err(); err != nil {
					stop(err, nil)
					return
				}
				if err := work(i, buf); err != nil {
					stop(err, nil)
					return
				}
				if in.Progress != nil && i&63 == 0 {
					mu.Lock()
					in.Progress(pass, i, n)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if crash != nil {
		panic(crash)
	}
	return failed
}

// read fills b from a tensor's elements at the byte from.
func (t *Tensor) read(b []byte, from int64) error {
	n, err := t.Array.Data.ReadAt(b, t.Array.Offset+from)
	if n == len(b) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF // the file was cut after it was opened
	}
	return fmt.Errorf("%s: reading at byte %d: %w", t.Array.Name, t.Array.Offset+from+int64(n), err)
}

// scan looks once at every element of the audited folder, and of the merged model.
func (in *Input) scan() error {
	in.scanOnce.Do(func() {
		if in.Scanned != nil {
			in.scanErr = in.take(in.Scanned)
			return
		}
		in.scanErr = in.look(jobs(in.scannable()))
	})
	return in.scanErr
}

// scannable returns the tensors whose elements are looked at, not looked at yet.
func (in *Input) scannable() (list []*Tensor) {
	for _, f := range []*Folder{in.Folder, in.Merged} {
		if f == nil {
			continue
		}
		for _, u := range f.Units {
			for _, c := range u.Containers {
				for _, t := range c.Tensors {
					t.stats = &stats{zero: true}
					list = append(list, t)
				}
			}
		}
	}
	return list
}

func (in *Input) look(list []job) error {
	var mu sync.Mutex
	return in.parallel("reading", len(list), piece, func(i int, buf []byte) error {
		j := list[i]
		b := buf[:j.to-j.from]
		if err := j.t.read(b, j.from); err != nil {
			return err
		}
		d := j.t.Array.DType
		m, float := floatMasks[d]
		bad, nonzero := look(b, m)
		if !float {
			bad = false
		}
		rows := rowsOf(j, b)
		if !bad && nonzero && rows == nil {
			mu.Lock()
			j.t.stats.zero = false
			mu.Unlock()
			return nil
		}
		var n, first int
		var value string
		if bad {
			n, first, value = count(b, d)
			first += int(j.from) / d.Size()
		}
		mu.Lock()
		defer mu.Unlock()
		s := j.t.stats
		if nonzero {
			s.zero = false
		}
		if n > 0 {
			if s.bad == 0 || first < s.first {
				s.first, s.value = first, value
			}
			s.bad += n
		}
		s.merge(rows)
		return nil
	})
}

// rowMax is the largest magnitude of the codes in the part of a row of an int8 matrix that lies in a piece.
type rowMax struct {
	row int
	max uint8
}

// rowsOf returns the largest magnitudes of the rows of an int8 matrix in a piece, nil for other tensors.
func rowsOf(j job, b []byte) []rowMax {
	a := j.t.Array
	if a.DType != format.I8 || len(a.Shape) != 2 || a.Shape[1] == 0 {
		return nil
	}
	width := int64(a.Shape[1])
	var list []rowMax
	for at := j.from; at < j.to; {
		row := at / width
		end := min(j.to, (row+1)*width)
		list = append(list, rowMax{int(row), maxCode(b[at-j.from : end-j.from])})
		at = end
	}
	return list
}

// maxCode returns the largest magnitude of int8 codes.
func maxCode(b []byte) uint8 {
	var low, high int8
	for _, v := range b {
		low, high = min(low, int8(v)), max(high, int8(v))
	}
	return uint8(max(-int(low), int(high)))
}

func (s *stats) merge(rows []rowMax) {
	for _, r := range rows {
		for len(s.rowMax) <= r.row {
			s.rowMax = append(s.rowMax, 0)
		}
		s.rowMax[r.row] = max(s.rowMax[r.row], r.max)
	}
}
