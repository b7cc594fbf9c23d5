//! `leasehold man`: generated from the same definitions as the help.

use clap::CommandFactory;
use clap_mangen::Man;

use crate::args::{Cli, ManArgs};
use crate::exit::{Outcome, unexpected};
use crate::output;

pub(super) fn man(args: ManArgs) -> Outcome {
    let command = Cli::command();
    let Some(folder) = args.out else {
        let mut page = Vec::new();
        Man::new(command)
            .render(&mut page)
            .map_err(|cause| unexpected("cannot write the man page", cause))?;
        output::bytes(&page)?;
        return Ok(0);
    };
    std::fs::create_dir_all(&folder)
        .and_then(|()| clap_mangen::generate_to(command, &folder))
        .map_err(|cause| unexpected("cannot write the man pages", cause))?;
    Ok(0)
}
