//! numpy's `RandomState`: the Mersenne Twister MT19937 (Matsumoto & Nishimura 1998) and numpy's
//! legacy shuffle, bit for bit, because Megatron's sample order is made with them.

/// Words of state.
const N: usize = 624;
const M: usize = 397;

/// `numpy.random.RandomState(seed)`.
pub struct RandomState {
    state: Box<[u32; N]>,
    at: usize,
}

impl RandomState {
    /// Seeds the generator. numpy uses the low 32 bits of the seed.
    pub fn new(seed: u32) -> RandomState {
        let mut state = Box::new([0; N]);
        state[0] = seed;
        for i in 1..N {
            let before = state[i - 1];
            state[i] = (before ^ before >> 30)
                .wrapping_mul(1_812_433_253)
                .wrapping_add(i as u32);
        }
        RandomState { state, at: N }
    }

    /// Seeds the generator with several words, as Python's `random.seed` does (`init_by_array`).
    pub fn from_key(key: &[u32]) -> RandomState {
        let mut all = RandomState::new(19_650_218);
        let s = &mut all.state;
        let mixed = |s: &[u32; N], i: usize, factor: u32| {
            s[i] ^ (s[i - 1] ^ s[i - 1] >> 30).wrapping_mul(factor)
        };
        let mut i = 1;
        for step in 0..N.max(key.len()) {
            let j = step % key.len();
            s[i] = mixed(s, i, 1_664_525)
                .wrapping_add(key[j])
                .wrapping_add(j as u32);
            i += 1;
            if i == N {
                s[0] = s[N - 1];
                i = 1;
            }
        }
        for _ in 1..N {
            s[i] = mixed(s, i, 1_566_083_941).wrapping_sub(i as u32);
            i += 1;
            if i == N {
                s[0] = s[N - 1];
                i = 1;
            }
        }
        s[0] = 0x8000_0000;
        all
    }

    /// Next 32 random bits.
    #[inline]
    pub fn word(&mut self) -> u32 {
        if self.at == N {
            self.refill();
        }
        let mut y = self.state[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c_5680;
        y ^= y << 15 & 0xefc6_0000;
        y ^ y >> 18
    }

    #[cold]
    fn refill(&mut self) {
        let s = &mut self.state;
        let twist = |high: u32, low: u32| {
            let y = high & 0x8000_0000 | low & 0x7fff_ffff;
            y >> 1 ^ if y & 1 == 1 { 0x9908_b0df } else { 0 }
        };
        for i in 0..N - M {
            s[i] = s[i + M] ^ twist(s[i], s[i + 1]);
        }
        for i in N - M..N - 1 {
            s[i] = s[i + M - N] ^ twist(s[i], s[i + 1]);
        }
        s[N - 1] = s[M - 1] ^ twist(s[N - 1], s[0]);
        self.at = 0;
    }

    /// Uniform integer in `0..=max`: draws are masked to the next power of two and rejected until
    /// one fits. Above 2^32 − 1 each draw takes two words, the high one first.
    #[inline]
    fn draw_up_to(&mut self, max: u64) -> u64 {
        let mask = u64::MAX.checked_shr(max.leading_zeros()).unwrap_or(0);
        loop {
            let draw = if max > u32::MAX as u64 {
                (self.word() as u64) << 32 | self.word() as u64
            } else {
                self.word() as u64
            } & mask;
            if draw <= max {
                return draw;
            }
        }
    }

    /// `RandomState.shuffle`, in place.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.draw_up_to(i as u64) as usize);
        }
    }
}
