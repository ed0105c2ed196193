package diff

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	packs "plumbline/verify/plant/dump"
)

// Padded against packed, as files: runs of TRL (golden/relations) whose rows are written behind one another. The relation holds; log-probs
// that see what is packed before them are named as that, those that differ everywhere as padding, and gradients of packed rows that each
// divide by their own tokens as a mean of means.
func TestRelationPacking(t *testing.T) {
	padded, err := dump.Open(t.Context(), []string{"../../golden/relations/plain"})
	require.NoError(t, err)
	const long = 40
	for _, by := range []string{"segment_ids", "cu_seqlens"} {
		for _, c := range []struct {
			name    string
			change  func(b *dump.Batch, p packs.Packing)
			verdict check.Verdict
			want    string
		}{
			{"healthy", func(*dump.Batch, packs.Packing) {}, check.Pass, ""},
			{"leak", func(b *dump.Batch, p packs.Packing) { moved(b, p, true) }, check.Fail, packSeen},
			{"everywhere", func(b *dump.Batch, p packs.Packing) { moved(b, p, false) }, check.Fail, paddingSeen},
			{"denominator", local, check.Fail, meanOfMeans},
		} {
			folder := t.TempDir()
			for _, step := range padded.Steps() {
				b, err := padded.Batch(t.Context(), step)
				require.NoError(t, err)
				b = b.Without("input_ids", "attention_mask", "prompt_len", "logits") // which have other columns
				for _, name := range b.Names() {
					b = b.With(name, slices.Clone(b.Tensors[name].Data))
				}
				p := packs.Pack(b, long, false)
				require.Greater(t, len(p.Of), 1)
				require.Less(t, len(p.Of), b.Rows)
				c.change(b, p)
				require.NoError(t, p.Write(filepath.Join(folder, filepath.Base(b.Files[0].Name)), b, by))
			}
			packed, err := dump.Open(t.Context(), []string{folder})
			require.NoError(t, err)
			verdict, got, reason := relate(t, "packing", padded, packed)
			require.Equal(t, []any{c.verdict, c.want}, []any{verdict, got}, "%s by %s: %s", c.name, by, reason)
		}
	}
}

// moved changes the log-probs of the rows that stand behind another one, or of all.
func moved(b *dump.Batch, p packs.Packing, behind bool) {
	for _, name := range []string{"logp_old", "logp_new"} {
		x := b.Token(name)
		if x == nil {
			continue
		}
		for _, list := range p.Of {
			for i, r := range list {
				for c := range b.Cols {
					if k := r*b.Cols + c; b.Mask[k] && (i > 0 || !behind) {
						x[k] -= .02 * float64(1+(c+r)%3)
					}
				}
			}
		}
	}
}

// local gives every packed row a denominator of its own tokens.
func local(b *dump.Batch, p packs.Packing) {
	total := 0
	for _, on := range b.Mask {
		if on {
			total++
		}
	}
	d := b.Token("dlogp")
	for _, list := range p.Of {
		own := 0
		for _, r := range list {
			for c := range b.Cols {
				if b.Mask[r*b.Cols+c] {
					own++
				}
			}
		}
		for _, r := range list {
			for c := range b.Cols {
				d[r*b.Cols+c] *= float64(total) / float64(own*len(p.Of))
			}
		}
	}
}
