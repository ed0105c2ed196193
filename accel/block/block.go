// Package block is the blocked product of matrices that the kernels of int8, bfloat16, float32 and float64 share: it cuts a product
// into pieces that stay in the caches, has the operands packed, and runs a register tile over them on all cores.
//
// The tile adds the products of one element in the order of k, continuing from what the block of k before it left in c. The bits of
// a result therefore depend neither on the sizes of blocks nor on the number of goroutines.
package block

import (
	"math/bits"
	"sync"
	"unsafe"

	"plumbline/accel/cpu"
)

// Sizes of blocks. A panel of b takes two thirds of a first-level cache of 32 KB at most; tall rows of a that meet it stay in the second level, as
// do high rows of wide columns of c.
const (
	panelBytes = 20 << 10
	tall       = 192
	high       = 768
	wide       = 64      // twice as many where that leaves work for many cores
	manyBytes  = 1 << 20 // of a that do not stay in the second level, so that each row that is fetched should meet more columns
)

// Tile is the inner loop of a product: MR rows of a times NR columns of a packed panel of b, k deep, into MR × NR elements of c.
//
//	c[i][j] = (load ? c[i][j] : 0) + Σ_l a[i][l]·b[l][j]
//
// The rows of a start lda elements apart and those of c ldc. A panel of b is [k][NR] without gaps, in the order that the tile asks for, and
// Tail rows more.
//
// Rows, where it is not nil, is Run for several tiles that lie below each other: to start it costs as much as some of them. Step, where it is
// not 0, is what k is a multiple of, and that of a product too; its operands are filled up with zeros.
type Tile[T, C any] struct {
	MR, NR, Tail int
	Run          func(k int, a *T, lda int, b *T, c *C, ldc int, load bool)
	Rows         func(tiles, k int, a *T, lda int, b *T, c *C, ldc int, load bool)
	Step         int
}

// Always is the choice of one tile, whatever the product.
func Always[T, C any](t Tile[T, C]) func(m, n int) Tile[T, C] {
	return func(int, int) Tile[T, C] { return t }
}

// Steps returns k rounded up to a multiple of the step.
func (t *Tile[T, C]) Steps(k int) int {
	step := max(t.Step, 1)
	return (k + step - 1) / step * step
}

// Product is c [M, N] = Σ over K of an operand [M, K] and an operand [K, N], whose elements are of type T once packed.
type Product[T, C any] struct {
	Tile    Tile[T, C]
	M, N, K int

	// A is read in place if it is not nil: row-major [M, K], rows LDA apart. Else PackA stores rows [i, i+rows) of the operand in
	// dst, rows ld apart.
	A     []T
	LDA   int
	PackA func(dst []T, ld, i, rows int)

	// PackB stores columns [j, j+cols) of rows [k, k+depth) of the operand in dst as a panel [depth+Tail][NR], with zeros in the columns
	// from cols on.
	PackB func(dst []T, k, depth, j, cols int)

	C   []C
	LDC int
	Add bool // to what c holds, which else is not read

	// Finish, if it is not nil, is called for parts of c that are complete: rows [i0, i1) of columns [j0, j1).
	Finish func(i0, i1, j0, j1 int)
}

// Run computes p. A product with M, N or K of 0 is not for it.
func Run[T, C any](p *Product[T, C]) {
	mr := p.Tile.MR
	a, lda := p.A, p.LDA
	whole := p.M / mr * mr // rows of a that can be read in place by full tiles
	if a == nil || crowded[T](lda) && p.M > mr {
		rows := (p.M + mr - 1) / mr * mr
		lda = apart[T](p.K)
		buffer := Get[T](rows * lda)
		defer Put(buffer)
		a, whole = buffer.Slice, rows
		cpu.Split(p.M, tall/2, func(lo, hi int) {
			if p.A == nil {
				p.PackA(a[lo*lda:], lda, lo, hi-lo)
				return
			}
			for i := lo; i < hi; i++ {
				copy(a[i*lda:][:p.K], p.A[i*p.LDA:])
			}
		})
		clear(a[p.M*lda:])
	}

	// Rows are cut only where columns alone do not make work for many cores.
	width := wide
	if p.N >= 32*wide || p.Tile.Rows != nil && p.N >= 16*wide && p.M*p.K*size[T]() > manyBytes {
		width = 2 * wide
	}
	acrossN := (p.N + width - 1) / width
	height := min(p.M, high)
	if acrossN < 8 {
		height = min(max((p.M+7)/8, tall/4), high)
	}
	acrossM := (p.M + height - 1) / height
	height = ((p.M+acrossM-1)/acrossM + mr - 1) / mr * mr // tasks of one size end together
	acrossM = (p.M + height - 1) / height
	task := func(t int) {
		i0, j0 := t%acrossM*height, t/acrossM*width
		p.part(a, lda, whole, i0, min(p.M, i0+height), j0, min(p.N, j0+width))
	}
	if work := p.M * p.N * p.K; work < 1<<15 {
		for t := range acrossM * acrossN { // less than it takes to start a goroutine
			task(t)
		}
		return
	}
	cpu.Run(acrossM*acrossN, task)
}

// crowded reports whether rows ld elements apart fall into few sets of the first-level cache, whose lines repeat every 4 KB.
func crowded[T any](ld int) bool {
	return ld*size[T]()%1024 == 0
}

// apart returns a distance of rows of k elements that is an odd number of cache lines, so that rows fall into different sets.
func apart[T any](k int) int {
	return ((k*size[T]()+63)/64 | 1) * 64 / size[T]()
}

func size[T any]() int {
	var zero T
	return int(unsafe.Sizeof(zero))
}

// part computes rows [i0, i1) of columns [j0, j1).
func (p *Product[T, C]) part(a []T, lda, whole, i0, i1, j0, j1 int) {
	mr, nr := p.Tile.MR, p.Tile.NR
	panels := (j1 - j0 + nr - 1) / nr
	depth := panelBytes / nr / size[T]()
	blocks := (p.K + depth - 1) / depth
	step := max(p.Tile.Step, 8)                                  // whole vectors of the packing
	depth = min(depth, ((p.K+blocks-1)/blocks+step-1)/step*step) // blocks of about one depth
	panel := nr * (depth + p.Tile.Tail)
	b := Get[T](panels * panel)
	defer Put(b)
	edge := Get[C](mr * nr)
	defer Put(edge)
	// Sums that several blocks of k add to are kept together where rows of c fall into few sets of the caches.
	var stripe *Buffer[C]
	ldStripe := panels * nr
	if p.K > depth && crowded[C](p.LDC) {
		rows := (i1 - i0 + mr - 1) / mr * mr
		stripe = Get[C](rows * ldStripe)
		defer Put(stripe)
		if p.Add {
			clear(stripe.Slice)
			for i := i0; i < i1; i++ {
				copy(stripe.Slice[(i-i0)*ldStripe:], p.C[i*p.LDC:][j0:j1])
			}
		}
	}
	var last *Buffer[T] // the rows that make no full tile, with rows of zeros
	if i1 > whole {
		last = Get[T](mr * depth)
		defer Put(last)
	}
	below := tall
	if p.Tile.Rows != nil {
		below = high
	}
	for k0 := 0; k0 < p.K; k0 += depth {
		deep := min(depth, p.K-k0)
		load := p.Add || k0 > 0
		for q := range panels {
			j := j0 + q*nr
			p.PackB(b.Slice[q*panel:][:nr*(deep+p.Tile.Tail)], k0, deep, j, min(nr, j1-j))
		}
		for ib := i0; ib < i1; ib += below {
			end := min(i1, ib+below)
			for q := range panels {
				packed := &b.Slice[q*panel]
				j := j0 + q*nr
				i := ib
				if p.Tile.Rows != nil {
					switch tiles := (end - ib) / mr; { // all of them are whole: a is packed
					case tiles == 0:
					case stripe != nil:
						p.Tile.Rows(tiles, deep, &a[i*lda+k0], lda, packed, &stripe.Slice[(i-i0)*ldStripe+q*nr], ldStripe, load)
						i += tiles * mr
					case j+nr <= j1:
						p.Tile.Rows(tiles, deep, &a[i*lda+k0], lda, packed, &p.C[i*p.LDC+j], p.LDC, load)
						i += tiles * mr
					}
				}
				for ; i < end; i += mr {
					from, ld := a[min(i*lda+k0, len(a)-1):], lda
					if i+mr > whole {
						clear(last.Slice)
						for r := range p.M - i {
							copy(last.Slice[r*deep:][:deep], a[(i+r)*lda+k0:])
						}
						from, ld = last.Slice, deep
					}
					if stripe != nil {
						p.Tile.Run(deep, &from[0], ld, packed, &stripe.Slice[(i-i0)*ldStripe+q*nr], ldStripe, load)
						continue
					}
					if i+mr <= i1 && j+nr <= j1 {
						p.Tile.Run(deep, &from[0], ld, packed, &p.C[i*p.LDC+j], p.LDC, load)
						continue
					}
					p.edge(edge.Slice, deep, &from[0], ld, packed, i, min(mr, i1-i), j, min(nr, j1-j), load)
				}
			}
		}
	}
	if stripe != nil {
		for i := i0; i < i1; i++ {
			copy(p.C[i*p.LDC:][j0:j1], stripe.Slice[(i-i0)*ldStripe:])
		}
	}
	if p.Finish != nil {
		p.Finish(i0, i1, j0, j1)
	}
}

// edge runs the tile beside c, where it would reach over an edge.
func (p *Product[T, C]) edge(tile []C, deep int, a *T, lda int, panel *T, i, rows, j, cols int, load bool) {
	nr := p.Tile.NR
	if load {
		clear(tile)
		for r := range rows {
			copy(tile[r*nr:][:cols], p.C[(i+r)*p.LDC+j:])
		}
	}
	p.Tile.Run(deep, a, lda, panel, &tile[0], nr, load)
	for r := range rows {
		copy(p.C[(i+r)*p.LDC+j:][:cols], tile[r*nr:])
	}
}

// Buffer is memory for the time of a call.
type Buffer[T any] struct {
	Slice []T
	whole []byte
}

// buffers holds buffers of one size each, see [class]: a small request takes no large buffer, and what is found is always large enough.
var buffers [4 * 64]sync.Pool // of *[]byte

// class returns the number of the smallest size that holds bytes, and that size: four to an octave, so that a quarter is wasted at most.
func class(bytes int) (number, size int) {
	octave := max(bits.Len(uint(bytes-1)), 3) // 2^(octave-1) < bytes <= 2^octave
	step := 1 << (octave - 3)
	quarters := (bytes-1)/step - 3 // of the upper half of the octave: 1 to 4
	quarters = max(quarters, 1)
	return 4*octave + quarters - 1, (4 + quarters) * step
}

// Get returns a buffer of n elements whose contents are undefined, on a cache line of its own. T holds no pointers.
func Get[T any](n int) *Buffer[T] {
	number, bytes := class(max(n, 1)*size[T]() + 64)
	whole, _ := buffers[number].Get().(*[]byte)
	if whole == nil {
		made := make([]byte, bytes)
		whole = &made
	}
	start := unsafe.Pointer(unsafe.SliceData(*whole))
	aligned := unsafe.Add(start, -uintptr(start)&63)
	return &Buffer[T]{unsafe.Slice((*T)(aligned), n), *whole}
}

// Put takes a buffer back. It must not be used any more.
func Put[T any](b *Buffer[T]) {
	whole := b.whole
	b.Slice, b.whole = nil, nil
	number, _ := class(len(whole))
	buffers[number].Put(&whole)
}
