//go:build !purego

package f32

import (
	"math"

	"plumbline/accel/block"
	"plumbline/accel/cpu"
)

func init() {
	attend.Add("avx2", cpu.AVX2, func(a Attention, y, q, k, v []float32, kv int, w *Scratch) {
		attendTiles(avx2Tiles, a, y, q, k, v, kv, w)
	})
	attend.Add("avx512", cpu.AVX512, func(a Attention, y, q, k, v []float32, kv int, w *Scratch) {
		attendTiles(a.tiles(q), a, y, q, k, v, kv, w)
	})
	attendBack.Add("avx2", cpu.AVX2, func(a Attention, dq, dk, dv, dy, q, k, v []float32, kv int, w *Scratch) {
		attendBackTiles(avx2Tiles, a, dq, dk, dv, dy, q, k, v, kv, w)
	})
	attendBack.Add("avx512", cpu.AVX512, func(a Attention, dq, dk, dv, dy, q, k, v []float32, kv int, w *Scratch) {
		attendBackTiles(a.tiles(q), a, dq, dk, dv, dy, q, k, v, kv, w)
	})
}

// tiles is what the passes are made of on a processor.
type tiles struct {
	mr, nr  int
	run     func(k int, a *float32, lda int, b *float32, half int, c *float32, ldc int, load bool)
	softmax func(x []float32, by float32) // of x·by, which is whole vectors
	back    func(ds, dp, p []float32, by float32)
	add     func(dst, x, y []float32)
}

var (
	avx2Tiles = &tiles{block.F32.MR, block.F32.NR, func(k int, a *float32, lda int, b *float32, _ int, c *float32, ldc int, load bool) {
		block.F32.Run(k, a, lda, b, c, ldc, load)
	}, scaledSoftmaxGeneric, softmaxBackGeneric, addGeneric}
	avx512Tiles = &tiles{block.F32x512.MR, block.F32x512.NR, block.PartF32, scaledSoftmaxAVX512, softmaxBackAVX512, addAVX512}
	fewTiles    = &tiles{avx2Tiles.mr, avx2Tiles.nr, avx2Tiles.run, scaledSoftmaxAVX512, softmaxBackAVX512, addAVX512}
)

// tiles returns those of 256 bits where the rows of others would be idle by half: new tokens that meet a cache.
func (a Attention) tiles(q []float32) *tiles {
	if len(q)/(a.KVHeads*a.Dim) <= fewTiles.mr {
		return fewTiles
	}
	return avx512Tiles
}

// blockRows is how many queries are taken at once, rows of all kinds of tiles; their scores stay in the second-level cache. A block of keys
// begins at a multiple of keyStep, which is one of the rows and of the columns of all kinds of tiles.
const (
	blockRows = 48
	keyStep   = 96
	vector    = 16
)

// span is some queries of some heads of a group, and the keys [from, to) outside of which none of them sees any; from is a multiple of keyStep.
type span struct {
	heads    int // 1, or all queries of each
	from, to int
	rows     []queryRow
	sees     []seen // by tile
}

// queryRow is a query of a head: where its channels stand among those of all heads, and the keys outside of which it sees none.
type queryRow struct {
	at int
	seen
}

type seen struct{ from, to int }

// spans calls f for the queries of a group, head after head.
func (a Attention) spans(t, s, kv, mr int, f func(*span)) {
	g := a.Heads / a.KVHeads
	step, heads := min(t, blockRows), max(1, min(g, blockRows/max(t, 1)))
	var rows [blockRows]queryRow
	var sees [blockRows]seen
	for h := kv * g; h < (kv+1)*g; h += heads {
		for lo := 0; lo < t; lo += step {
			x := &span{heads: min(heads, (kv+1)*g-h), from: s, rows: rows[:0], sees: sees[:0]}
			for head := h; head < h+x.heads; head++ {
				for i := lo; i < min(t, lo+step); i++ {
					r := queryRow{at: (i*a.Heads + head) * a.Dim}
					r.from, r.to = a.sees(s-t+i, s)
					x.from, x.to = min(x.from, r.from), max(x.to, r.to)
					if len(x.rows)%mr == 0 {
						x.sees = append(x.sees, r.seen)
					}
					tile := &x.sees[len(x.sees)-1]
					tile.from, tile.to = min(tile.from, r.from), max(tile.to, r.to)
					x.rows = append(x.rows, r)
				}
			}
			x.from = x.from / keyStep * keyStep
			f(x)
		}
	}
}

func up(n, to int) int { return (n + to - 1) / to * to }

// panels is an operand [k, n] of a product with tiles.
type panels struct {
	x []float32
	k int
}

// turned packs the transpose of b [n, k], rows ld apart; upright packs b [k, n].
func (x *tiles) turned(buffer *[]float32, b []float32, ld, n, k int) panels {
	return x.pack(buffer, n, k, func(dst []float32, k, depth, j, cols int) { block.TurnF32(dst, b, ld, k, depth, j, cols) })
}

func (x *tiles) upright(buffer *[]float32, b []float32, ld, k, n int) panels {
	return x.pack(buffer, n, k, func(dst []float32, k, depth, j, cols int) { block.RowsF32(dst, b, ld, k, depth, j, cols) })
}

func (x *tiles) pack(buffer *[]float32, n, k int, pack func(dst []float32, k, depth, j, cols int)) panels {
	dst := grow(buffer, up(n, x.nr)*k)
	pack = block.Panels(x.nr, 16, pack)
	for j := 0; j < n; j += x.nr {
		pack(dst[j*k:(j+x.nr)*k], 0, k, j, min(x.nr, n-j))
	}
	return panels{dst, k}
}

// tile stores in the tile at c, or adds to it, the product of rows of a with the rows [k0, k0+k) of the panel that begins with column j.
func (x *tiles) tile(c []float32, ldc int, a []float32, lda int, b panels, j, k0, k int, load bool) {
	x.run(k, &a[0], lda, &b.x[j*b.k+k0*16], b.k*16, &c[0], ldc, load)
}

// gather copies the channels of the rows of a span, with rows of zeros up to whole tiles; scatter copies them back.
func (x *tiles) gather(buffer *[]float32, dim int, src []float32, s *span) []float32 {
	dst := grow(buffer, up(len(s.rows), x.mr)*dim)
	for r, q := range s.rows {
		copy(dst[r*dim:][:dim], src[q.at:])
	}
	clear(dst[len(s.rows)*dim:])
	return dst
}

func (s *span) scatter(dst, src []float32, dim, ld int) {
	for r, q := range s.rows {
		copy(dst[q.at:][:dim], src[r*ld:])
	}
}

// lead returns the distance of rows of scores, which must not fall into few sets of the caches.
func (s *span) lead(nr int) int {
	n := up(s.to-s.from, nr)
	if n%256 == 0 {
		n += 16
	}
	return n
}

// scores stores in c, for tiles of rows of x, their products with the keys that one of them sees.
func (x *tiles) scores(c []float32, ldc int, rows []float32, dim int, keys panels, s *span) {
	for i, t := range s.sees {
		i *= x.mr
		for j := t.from / x.nr * x.nr; j < t.to; j += x.nr {
			x.tile(c[i*ldc+j-s.from:], ldc, rows[i*dim:], dim, keys, j, 0, dim, false)
		}
	}
}

// row returns the scores of a row, from a multiple of a vector to another: those of all keys that it sees.
func (s *span) row(p []float32, ld, r int) (row []float32, start int) {
	q := s.rows[r]
	start = q.from / vector * vector
	return p[r*ld+start-s.from : r*ld+up(q.to, vector)-s.from], start
}

// weights turns scores into probabilities, 0 for what a query does not see.
func (x *tiles) weights(p []float32, ld int, a Attention, s *span) {
	for r, q := range s.rows {
		row, start := s.row(p, ld, r)
		a.hide(row[:q.to-start], q.from, start)
		hidden := row[q.to-start:]
		for j := range hidden {
			hidden[j] = float32(math.Inf(-1))
		}
		x.softmax(row, a.Scale)
		s.clear(p, ld, r)
	}
}

// clear clears what a row of scores holds of keys that it does not see.
func (s *span) clear(p []float32, ld, r int) {
	q, all := s.rows[r], p[r*ld:][:s.to-s.from]
	clear(all[:q.from-s.from])
	clear(all[q.to-s.from:])
}

// read stores in c, for tiles of rows of p, the products of p with the rows of b that they see.
func (x *tiles) read(c []float32, ldc int, p []float32, ld int, b panels, dim int, s *span) {
	for i, t := range s.sees {
		i *= x.mr
		for j := 0; j < dim; j += x.nr {
			x.tile(c[i*ldc+j:], ldc, p[i*ld+t.from-s.from:], ld, b, j, t.from, t.to-t.from, false)
		}
	}
}

// attendTiles works like attendGeneric.
func attendTiles(x *tiles, a Attention, y, q, k, v []float32, kv int, w *Scratch) {
	t, s := a.places(q, k)
	ks, wide := a.KVHeads*a.Dim, up(a.Dim, x.nr)
	keys, values := x.turned(&w.keys, k[kv*a.Dim:], ks, s, a.Dim), x.upright(&w.valueRows, v[kv*a.Dim:], ks, s, a.Dim)
	a.spans(t, s, kv, x.mr, func(s *span) {
		ld, m := s.lead(x.nr), up(len(s.rows), x.mr)
		p, out := grow(&w.p, m*ld), grow(&w.out, m*wide)
		x.scores(p, ld, x.gather(&w.q, a.Dim, q, s), a.Dim, keys, s)
		x.weights(p, ld, a, s)
		x.read(out, wide, p, ld, values, a.Dim, s)
		s.scatter(y, out, a.Dim, wide)
	})
}

// attendBackTiles works like attendBackGeneric.
func attendBackTiles(x *tiles, a Attention, dq, dk, dv, dy, q, k, v []float32, kv int, w *Scratch) {
	t, s := a.places(q, k)
	ks, wide := a.KVHeads*a.Dim, up(a.Dim, x.nr)
	keys, values := x.turned(&w.keys, k[kv*a.Dim:], ks, s, a.Dim), x.turned(&w.values, v[kv*a.Dim:], ks, s, a.Dim)
	keyRows := x.upright(&w.keyRows, k[kv*a.Dim:], ks, s, a.Dim)
	sumK, sumV := grow(&w.dk, up(s, x.mr)*wide), grow(&w.dv, up(s, x.mr)*wide)
	clear(sumK)
	clear(sumV)
	a.spans(t, s, kv, x.mr, func(s *span) {
		ld, m, n := s.lead(x.nr), up(len(s.rows), x.mr), len(s.rows)
		p, ds, out := grow(&w.p, m*ld), grow(&w.dp, m*ld), grow(&w.out, m*wide)
		queries, slopes := x.gather(&w.q, a.Dim, q, s), x.gather(&w.dy, a.Dim, dy, s)
		x.scores(p, ld, queries, a.Dim, keys, s)
		x.weights(p, ld, a, s)
		x.scores(ds, ld, slopes, a.Dim, values, s)
		for r := range n {
			row, _ := s.row(ds, ld, r)
			weights, _ := s.row(p, ld, r)
			x.back(row, row, weights, a.Scale)
			s.clear(ds, ld, r)
		}
		x.read(out, wide, ds, ld, keyRows, a.Dim, s)
		s.scatter(dq, out, a.Dim, wide)
		x.spread(sumV, wide, p, ld, x.upright(&w.slopeRows, slopes, a.Dim, n, a.Dim), a, s, w)
		x.spread(sumK, wide, ds, ld, x.upright(&w.queryRows, queries, a.Dim, n, a.Dim), a, s, w)
	})
	a.addTo(dk, sumK, wide, kv, x.add)
	a.addTo(dv, sumV, wide, kv, x.add)
}

// spread adds to the rows of c, one for each key, the product of the transpose of p with b, whose rows are queries.
func (x *tiles) spread(c []float32, ldc int, p []float32, ld int, b panels, a Attention, s *span, w *Scratch) {
	n, m := len(s.rows), s.to-s.from
	apart := up(n, 16) | 16 // an odd number of cache lines
	turned := grow(&w.turned, up(m, x.mr)*apart)
	block.ColumnsF32(turned, apart, p, ld, n, 0, m)
	clear(turned[m*apart:])
	from := 0
	for i := 0; i < m; i += x.mr {
		for a.Causal && s.heads == 1 && s.rows[from].to <= s.from+i { // a query before all that see a key of the tile
			from++
		}
		for j := 0; j < a.Dim; j += x.nr {
			x.tile(c[(s.from+i)*ldc+j:], ldc, turned[i*apart+from:], apart, b, j, from, n-from, true)
		}
	}
}

// scaledSoftmaxAVX512 works like scaledSoftmaxGeneric.
func scaledSoftmaxAVX512(x []float32, by float32) {
	if !softmaxRow(&x[0], len(x)/vector, by) {
		clear(x)
	}
}

// softmaxRow turns 16·n elements x·by into probabilities. It returns false where all are −Inf.
//
//go:noescape
func softmaxRow(x *float32, n int, by float32) bool
