package checkpoint

import "math"

// columnNorms returns ‖W + s·B·A‖ of every column of W [rows, cols], where left is [rows, r] and right [r, cols]. round is what W's
// elements go through when they are loaded.
func (in *Input) columnNorms(s float64, from *matrixRows, left, right []float64, rows, cols, r int, round func(float64) float64) ([]float64, error) {
	sums, w := make([]float64, cols), make([]float64, min(cols, widest))
	for row := range rows {
		if err := in.context().Err(); err != nil {
			return nil, err
		}
		for first := 0; first < cols; first += widest {
			part := w[:min(widest, cols-first)]
			if err := from.row(part, row, first); err != nil {
				return nil, err
			}
			for j, y := range part {
				delta := 0.0
				for k := range r {
					delta += float64(left[row*r+k] * right[k*cols+first+j])
				}
				y = round(y) + float64(s*delta)
				sums[first+j] += float64(y * y)
			}
		}
	}
	for j, sum := range sums {
		sums[j] = math.Sqrt(sum)
	}
	return sums, nil
}
