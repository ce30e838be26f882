//! Refuses flags that have no effect, and names the mode that each belongs to.

use super::Estimate;
use base::Problems;
use estimate::mixture::Mixture;
use estimate::setup::Program;

/// Flag, whether it is given, whether it has an effect here, and the mode that it belongs to.
type Rule = (&'static str, bool, bool, &'static str);

impl Estimate {
    /// Whether it plans a run, rather than print a table or score measured runs.
    fn is_planning(&self) -> bool {
        let lists = self.list_hardware || self.list_shapes;
        !(self.selftest || lists || self.score.is_some())
    }

    /// --gpus alone asks for the best topology over them: a plan has its own grid.
    /// `fills_gpus`: unless it says how many ranks the manifest's grid has.
    pub fn imply_search(&mut self, fills_gpus: bool) {
        let compares = !(self.campaign.what_if.is_empty() && self.campaign.sizes.is_empty());
        if let Some(gpus) = self.search.gpus
            && self.is_planning()
            && !fills_gpus
            && !compares
            && !self.search.is_asked()
        {
            base::warn!("--gpus {gpus} without --search: searching for the best topology");
            self.search.search = true;
        }
    }

    pub fn refuse_unused(&self, fills_gpus: bool) -> Result<(), Problems> {
        let s = &self.search;
        let compares = !self.campaign.what_if.is_empty();
        let sizes = !self.campaign.sizes.is_empty();
        let until = self.campaign.until_loss.is_some();
        let over = s.search || s.max_params || sizes || s.days.is_some() || fills_gpus;
        let spares = s.search || s.max_params;
        let plans = !s.max_params && !s.min_gpus;
        let drawn = plans && !compares && !sizes && s.days.is_none();
        let alone = !s.is_asked() && !compares && !sizes;
        let planning = self.is_planning();
        let run = "a plan or --search, which have days and money";
        let rules: [Rule; 20] = [
            ("MANIFEST", self.manifest.is_some(), planning, "a plan or a search"),
            ("--gpus", s.gpus.is_some(), over, "--search, --max-params, --days and --sizes"),
            ("--nodes-spare", s.nodes_spare.is_some(), spares, "--search and --max-params"),
            ("--objective", s.objective.is_some(), s.search, "--search"),
            ("--with", !s.with.is_empty(), s.is_asked(), "a search"),
            ("--law", self.campaign.law.is_some(), sizes || until, "--sizes and --until-loss"),
            ("--until-loss", until, plans && !sizes && !compares, run),
            ("--what-if", compares, !s.is_asked() && !sizes, "a plan"),
            ("--sizes", sizes, !s.is_asked(), "a campaign by itself, with --gpus"),
            ("--draw-schedule", self.draw_schedule, alone, "a plan"),
            ("--plot", self.plot.is_some(), drawn, "a plan or --search"),
            ("--beside", !self.beside.is_empty(), self.plot.is_some() && alone, "--plot of a plan"),
            ("--overwrite", self.overwrite.overwrite, self.plot.is_some(), "--plot"),
            ("--budget", self.budget.is_some(), drawn, run),
            (
                "--tflops",
                self.tflops.is_some(),
                alone && self.plot.is_none() && self.calibrate.is_none(),
                "a plan, without --calibrate and --plot",
            ),
            ("--price", self.price.is_some(), plans, run),
            ("--availability", self.availability.is_some(), plans, run),
            ("--tokens", self.tokens.is_some(), plans && !sizes, run),
            (
                "--calibrate",
                self.calibrate.is_some(),
                !self.selftest,
                "a plan, a search or --score",
            ),
            (
                "--async-launches",
                self.async_launches,
                planning || self.score.is_some(),
                "a plan, a search or --score",
            ),
        ];
        let unused = rules.iter().find(|(_, given, acts, _)| *given && !acts);
        match unused.or_else(|| {
            rules
                .iter()
                .find(|(name, given, ..)| *given && !planning && !SCORES.contains(name))
        }) {
            None => Ok(()),
            Some((flag, _, _, with)) => Err(refuse(flag, with)),
        }
    }

    /// Refuses searches that change the shape of a mixture of experts, and laws that are of dense models.
    pub fn refuse_for_mixture(&self, mixture: Option<Mixture>) -> Result<(), Problems> {
        let given = [
            ("--max-params", self.search.max_params),
            ("--sizes", !self.campaign.sizes.is_empty()),
            ("--until-loss", self.campaign.until_loss.is_some()),
        ];
        match given.iter().find(|(_, given)| *given && mixture.is_some()) {
            None => Ok(()),
            Some((flag, _)) => Err(refuse(flag, "dense models")),
        }
    }

    /// Refuses flags that the program of `--as` does not have.
    pub fn refuse_unused_for(&self, program: Program) -> Result<(), Problems> {
        if self.async_launches && program == Program::Gptrain {
            return Err(refuse("--async-launches", "--as another program"));
        }
        if !self.search.with.is_empty() && program != Program::Gptrain {
            return Err(refuse("--with", "gptrain's own plans"));
        }
        Ok(())
    }
}

/// Flags that also have an effect with --score.
const SCORES: [&str; 2] = ["--calibrate", "--async-launches"];

fn refuse(flag: &str, with: &str) -> Problems {
    Problems::one(flag, "has no effect here", format!("leave it out; it is for {with}"))
}
