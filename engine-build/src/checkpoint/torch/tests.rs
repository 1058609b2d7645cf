//! Tensors of any layout are read in the order of their indices.

use proptest::prelude::*;

use super::malicious::{archive, number, state_of};
use crate::checkpoint::{Folder, Weights};

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A tensor whose dimensions lie in the storage in any order, with gaps between them.
    #[test]
    fn any_order_of_dimensions_is_read_row_by_row(
        dimensions in prop::collection::vec((1_u64..7, 0_u64..100, 0_u64..12), 0..5),
        offset in 0_u64..5,
    ) {
        let mut order: Vec<usize> = (0..dimensions.len()).collect();
        order.sort_by_key(|&dimension| dimensions[dimension].1);
        let mut strides = vec![0; dimensions.len()];
        let mut reach = 1;
        for &dimension in &order {
            let (size, _, gap) = dimensions[dimension];
            // Gaps are rare, because nearly all tensors have none.
            strides[dimension] = reach + gap.saturating_sub(8);
            reach = strides[dimension] * size;
        }
        let shape: Vec<u64> = dimensions.iter().map(|(size, _, _)| *size).collect();
        let elements = offset + reach;
        let data: Vec<u8> = (0..elements).flat_map(|index| (index as f32).to_le_bytes()).collect();
        let numbers = |sizes: &[u64]| -> Vec<u8> { sizes.iter().flat_map(|size| number(*size)).collect() };
        let tuple = |sizes: &[u64]| [b"(", &*numbers(sizes), b"t"].concat();
        let pickle = state_of(&number(elements), &number(offset), &tuple(&shape), &tuple(&strides));
        let folder = tempfile::tempdir().expect("a folder");
        let file = archive(&[("m/data.pkl", &pickle), ("m/data/0", &data)]);
        std::fs::write(folder.path().join("pytorch_model.bin"), file).expect("written");

        let weights = Weights::open(&Folder::open(folder.path()).expect("a folder")).expect("weights");
        let tensor = weights.tensor("w", &shape).expect("a tensor");
        let mut found = Vec::new();
        let read = weights.read(&tensor, tensor.elements, |_, values| {
            found.extend_from_slice(values);
            Ok::<_, crate::BuildError>(())
        });
        read.expect("read");
        let expected: Vec<f32> = (0..tensor.elements)
            .map(|index| {
                let mut rest = index;
                let place = |(size, stride): (&u64, &u64)| {
                    let at = rest % size;
                    rest /= size;
                    at * stride
                };
                (offset + shape.iter().zip(&strides).rev().map(place).sum::<u64>()) as f32
            })
            .collect();
        prop_assert_eq!(found, expected);
    }
}
