mod fake;
mod live;
