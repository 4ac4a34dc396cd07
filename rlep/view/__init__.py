"""The web console: reads run directories and shows them; writes nothing, and joins no cluster."""
